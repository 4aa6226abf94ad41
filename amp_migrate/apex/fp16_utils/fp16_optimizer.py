"""``FP16_Optimizer``: loss scaling and float32 master weights around an optimizer of a half model.

Source: apex/fp16_utils/fp16_optimizer.py.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor

from .. import _native
from ..amp._amp_state import maybe_print
from ..amp.scaler import LossScaler
from ._saved_scalers import as_loss_scaler
from .fp16util import clip_grad_norm, master_params_to_model_params


class FP16_Optimizer:
    """Wraps ``init_optimizer``: its half parameters are replaced by float32 masters, in place and at their positions.

    Args:
        init_optimizer: a torch optimizer over half and float32 parameters.
        static_loss_scale: the loss scale, unless it is dynamic.
        dynamic_loss_scale: adjust the scale, and skip steps whose gradients overflow.
        dynamic_loss_args: keywords of a dynamic scale: init_scale, scale_window.
        verbose: print what becomes of each parameter.

    Raises:
        TypeError: for trainable parameters of other dtypes.
    """

    def __init__(
        self,
        init_optimizer: Any,
        static_loss_scale: float = 1.0,
        dynamic_loss_scale: bool = False,
        dynamic_loss_args: dict[str, Any] | None = None,
        verbose: bool = True,
    ) -> None:
        self.verbose = verbose
        self.optimizer = init_optimizer
        self.fp16_groups: list[list[Tensor]] = []
        self.fp32_from_fp16_groups: list[list[Tensor]] = []
        self.fp32_from_fp32_groups: list[list[Tensor]] = []
        for index, group in enumerate(self.optimizer.param_groups):
            self.maybe_print(f"FP16_Optimizer: parameter group {index}")
            self._take_group(group)
        self.all_fp16_params = sum(self.fp16_groups, [])
        self.all_fp32_from_fp16_params = sum(self.fp32_from_fp16_groups, [])
        self.all_fp32_from_fp32_params = sum(self.fp32_from_fp32_groups, [])
        # loading casts the state that half parameters already had to the dtype of their masters
        self.optimizer.load_state_dict(self.optimizer.state_dict())
        self.dynamic_loss_scale = bool(dynamic_loss_scale)
        self.loss_scaler = (
            LossScaler("dynamic", **(dynamic_loss_args or {})) if dynamic_loss_scale else LossScaler(static_loss_scale)
        )
        self.overflow = False
        self.first_closure_call_this_step = True
        self.clip_grad_norm: Callable[..., Any] = clip_grad_norm

    def _take_group(self, group: dict[str, Any]) -> None:
        half, masters, full = [], [], []
        for index, param in enumerate(group["params"]):
            if not param.requires_grad:
                continue
            if param.dtype not in (torch.float16, torch.float32):
                raise TypeError(
                    f"FP16_Optimizer takes float16 and float32 parameters, and received {param.dtype} of size "
                    f"{tuple(param.shape)}. Convert the model with .half() or .float() first."
                )
            self.maybe_print(f"FP16_Optimizer: {param.dtype} of size {tuple(param.shape)}")
            if param.dtype == torch.float32:
                full.append(param)
                continue
            master = param.detach().clone().float().requires_grad_(True)
            group["params"][index] = master
            if param in self.optimizer.state:
                self.optimizer.state[master] = self.optimizer.state.pop(param)
            half.append(param)
            masters.append(master)
        self.fp16_groups.append(half)
        self.fp32_from_fp16_groups.append(masters)
        self.fp32_from_fp32_groups.append(full)

    def maybe_print(self, msg: str) -> None:
        """Print ``msg`` if ``verbose``."""
        if self.verbose:
            print(msg)

    def __getstate__(self) -> Any:
        raise RuntimeError("FP16_Optimizer can't be pickled: save its state_dict().")

    def __setstate__(self, state: Any) -> None:
        raise RuntimeError("FP16_Optimizer can't be unpickled: build one, and use load_state_dict().")

    def zero_grad(self, set_grads_to_None: bool = False) -> None:
        """Zero the gradients of the masters and of the half parameters, or set them to None."""
        for group in self.optimizer.param_groups:
            _zero(group["params"], set_grads_to_None)
        _zero(self.all_fp16_params, set_grads_to_None)

    def backward(self, loss: Tensor, update_master_grads: bool = True, retain_graph: bool = False) -> None:
        """Backward of ``loss.float()`` times the scale, then :meth:`update_master_grads` unless told not to."""
        scaled_loss = loss.float() * self.loss_scaler.loss_scale()
        scaled_loss.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
        if update_master_grads:
            self.update_master_grads()

    def update_master_grads(self) -> None:
        """Copy the gradients to the masters, unscale and check them, and update the scale.

        Sets ``overflow``, with a dynamic scale only; then :meth:`step` does nothing.
        """
        self.loss_scaler.clear_overflow_state()
        targets, sources = [], []
        for model, master in zip(self.all_fp16_params, self.all_fp32_from_fp16_params):
            if model.grad is not None:
                if master.grad is None:
                    master.grad = torch.empty_like(master)
                targets.append(master.grad)
                sources.append(model.grad)
        _native.copy_into(targets, sources)
        targets += [param.grad for param in self.all_fp32_from_fp32_params if param.grad is not None]
        self._unscale(targets)
        self.overflow = self.loss_scaler.update_scale()

    def _unscale(self, grads: list[Tensor]) -> None:
        scale = self.loss_scaler.loss_scale()
        if not grads or (scale == 1.0 and not self.loss_scaler.dynamic):
            return
        flag = _native.multiply_and_check(grads, torch.tensor(1.0 / scale, device=grads[0].device))
        if self.loss_scaler.dynamic:
            self.loss_scaler._has_overflow = bool(flag.item())

    def clip_master_grads(self, max_norm: float, norm_type: float = 2) -> Any:
        """Clip the masters' gradients by their norm; return that norm, or -1 after an overflow."""
        if self.overflow:
            return -1
        params = [param for group in self.optimizer.param_groups for param in group["params"]]
        return self.clip_grad_norm(params, max_norm, norm_type)

    def inspect_master_grad_data(self) -> list[list[Tensor | None]] | None:
        """The unscaled gradients, a list for each parameter group; None after an overflow."""
        if self.overflow:
            print("Warning: after an overflow, FP16_Optimizer has no valid gradients to inspect. Returning None.")
            return None
        return [
            [None if param.grad is None else param.grad.data for param in group["params"]]
            for group in self.optimizer.param_groups
        ]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step the optimizer on the masters and copy them to the model; after an overflow, do nothing.

        Args:
            closure: calls :meth:`zero_grad`, computes the loss, calls :meth:`backward` and returns the loss. Not
                with a dynamic scale.

        Returns:
            What the wrapped optimizer's ``step`` returns; None if skipped.
        """
        if self.overflow:
            # the text that log readers look for
            maybe_print(f"Gradient overflow.  Skipping step, reducing loss scale to {self.loss_scaler.loss_scale()}")
            return None
        result = self.optimizer.step() if closure is None else self._step_with_closure(closure)
        self._master_params_to_model_params()
        return result

    def _step_with_closure(self, closure: Callable[[], Any]) -> Any:
        def closure_on_fresh_parameters() -> Any:
            # an optimizer that calls it again has changed the masters since
            if self.first_closure_call_this_step:
                self.first_closure_call_this_step = False
            else:
                self._master_params_to_model_params()
            loss = closure()
            while self.overflow:
                print(f"OVERFLOW within closure! Skipping step, reducing loss scale to {self.loss_scale}")
                loss = closure()
            return loss

        result = self.optimizer.step(closure_on_fresh_parameters)
        self.first_closure_call_this_step = True
        return result

    def _master_params_to_model_params(self) -> None:
        for half, masters in zip(self.fp16_groups, self.fp32_from_fp16_groups):
            master_params_to_model_params(half, masters)

    def state_dict(self) -> dict[str, Any]:
        """The state in Apex's layout: the scaler as an object, the wrapped optimizer's state, and the masters."""
        return {
            "loss_scaler": self.loss_scaler,
            "dynamic_loss_scale": self.dynamic_loss_scale,
            "overflow": self.overflow,
            "first_closure_call_this_step": self.first_closure_call_this_step,
            "optimizer_state_dict": self.optimizer.state_dict(),
            "fp32_from_fp16": self.fp32_from_fp16_groups,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` gave, here or in any version of Apex. Load the model's state too.

        Raises:
            KeyError: if an entry is missing.
            TypeError: if the saved scaler is none of Apex's.
        """
        self.loss_scaler = as_loss_scaler(state_dict["loss_scaler"])
        self.dynamic_loss_scale = state_dict["dynamic_loss_scale"]
        self.overflow = state_dict["overflow"]
        self.first_closure_call_this_step = state_dict["first_closure_call_this_step"]
        self.optimizer.load_state_dict(state_dict["optimizer_state_dict"])
        for group, saved_group in zip(self.fp32_from_fp16_groups, state_dict["fp32_from_fp16"]):
            for master, saved in zip(group, saved_group):
                master.data.copy_(saved.data)

    @property
    def loss_scale(self) -> float:
        """The current loss scale; can be set."""
        return self.loss_scaler.loss_scale()

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        self.loss_scaler._loss_scale = value

    @property
    def state(self) -> Any:
        """The wrapped optimizer's state; can be set."""
        return self.optimizer.state

    @state.setter
    def state(self, value: Any) -> None:
        self.optimizer.state = value

    @property
    def param_groups(self) -> Any:
        """The wrapped optimizer's parameter groups, which hold the masters; can be set."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, value: Any) -> None:
        self.optimizer.param_groups = value


def _zero(params: list[Tensor], set_to_none: bool) -> None:
    for param in params:
        if set_to_none:
            param.grad = None
        elif param.grad is not None:
            param.grad.detach_()
            param.grad.zero_()
