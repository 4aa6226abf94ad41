"""``FP16_Optimizer`` for the old FusedAdam and FusedSGD: float32 masters, loss scale and skipped steps around them.

Source: apex/contrib/optimizers/fp16_optimizer.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...optimizers._base import Closure
from ...optimizers._tensor_lists import in_float32, norms
from ._flat_layout import is_flat, unflattened


class FP16_Optimizer:
    """Train a half model through float32 masters, with a loss scale of its own::

        optimizer = FP16_Optimizer(apex.contrib.optimizers.FusedAdam(model.parameters()), dynamic_loss_scale=True)
        optimizer.zero_grad()
        optimizer.backward(loss)
        optimizer.step()

    Args:
        init_optimizer: an optimizer whose ``step`` takes ``grads``, ``output_params``, ``scale`` and ``grad_norms``
            (``apex.contrib.optimizers``); its groups get the masters.
        static_loss_scale: the loss scale, if not dynamic.
        dynamic_loss_scale: start at 2 ** 16, halve after an overflow (not below 1), double after 1000 steps without.
        dynamic_loss_args: must be None.
        verbose: tell about overflows.

    Raises:
        SystemError: for ``dynamic_loss_args``.
    """

    def __init__(
        self,
        init_optimizer: Any,
        static_loss_scale: float = 1.0,
        dynamic_loss_scale: bool = False,
        dynamic_loss_args: Any = None,
        verbose: bool = True,
    ) -> None:
        print("\nThis fp16_optimizer is designed to only work with apex.contrib.optimizers.*")
        print("To update, use updated optimizers with AMP.")
        self.optimizer = init_optimizer
        #: the model's parameters and their masters, group by group
        self.fp16_groups: list[list[Tensor]] = []
        self.fp32_groups: list[list[Tensor]] = []
        for group in self.optimizer.param_groups:
            self.fp16_groups.append(list(group["params"]))
            self.fp32_groups.append([param.detach().clone().float() for param in group["params"]])
            group["params"] = self.fp32_groups[-1]
        self.dynamic_loss_scale = bool(dynamic_loss_scale)
        self.cur_iter = 0
        if not dynamic_loss_scale:
            self.cur_scale = static_loss_scale
        elif dynamic_loss_args is not None:
            raise SystemError("Do not support dynamic loss scale args for now. Leave dynamic_loss_args out.")
        else:
            self.cur_scale = 2.0**16
            self.last_overflow_iter = -1
            self.scale_factor = 2
            self.scale_window = 1000
        self.verbose = verbose

    def zero_grad(self, set_grads_to_None: bool = True) -> None:
        """Set the model's gradients to None, or to zero in place."""
        for group in self.fp16_groups:
            for param in group:
                if set_grads_to_None:
                    param.grad = None
                elif param.grad is not None:
                    param.grad.detach_()
                    param.grad.zero_()

    def backward(self, loss: Tensor) -> None:
        """Backward of ``loss.float()`` times the loss scale: the model's gradients are scaled."""
        torch.autograd.backward([loss.float() * self.cur_scale])

    def step(self, closure: Closure | None = None) -> None:
        """Update masters and model unless a gradient isn't finite, then the loss scale. ``closure`` is ignored."""
        grads = [[param.grad for param in group] for group in self.fp16_groups]
        group_norms = [_norm([grad for grad in group if grad is not None]) for group in grads]
        if not _all_finite([norm for norm in group_norms if norm is not None]):
            self._update_scale(True)
            return
        self.optimizer.step(grads=grads, output_params=self.fp16_groups, scale=self.cur_scale, grad_norms=group_norms)
        self._update_scale(False)

    def _update_scale(self, skip: bool) -> None:
        if skip and (self.verbose or not self.dynamic_loss_scale):
            print("\nGrad overflow on iteration", self.cur_iter)
            print(f"Using {'dynamic' if self.dynamic_loss_scale else 'static'} loss scale of", self.cur_scale)
        if self.dynamic_loss_scale:
            if skip:
                self.cur_scale = max(self.cur_scale / self.scale_factor, 1)
                self.last_overflow_iter = self.cur_iter
            elif (self.cur_iter - self.last_overflow_iter) % self.scale_window == 0:
                self.cur_scale *= self.scale_factor
        self.cur_iter += 1

    @property
    def state(self) -> Any:
        """The wrapped optimizer's state."""
        return self.optimizer.state

    @state.setter
    def state(self, value: Any) -> None:
        self.optimizer.state = value

    @property
    def param_groups(self) -> Any:
        """The wrapped optimizer's groups, of masters."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, value: Any) -> None:
        self.optimizer.param_groups = value

    def _scale_names(self) -> tuple[str, ...]:
        dynamic = ("last_overflow_iter", "scale_factor", "scale_window") if self.dynamic_loss_scale else ()
        return ("cur_scale", "cur_iter", *dynamic)

    def state_dict(self) -> dict[str, Any]:
        """Loss scale, the wrapped optimizer's state dict, and the masters (``fp32_groups``)."""
        return {
            "dynamic_loss_scale": self.dynamic_loss_scale,
            **{name: getattr(self, name) for name in self._scale_names()},
            "optimizer_state_dict": self.optimizer.state_dict(),
            "fp32_groups": self.fp32_groups,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned here or in Apex, since 2019-01 (flat masters too).

        Raises:
            ValueError: if groups or the sizes of parameters differ.
        """
        if is_flat(state_dict):
            state_dict = unflattened(state_dict, self.fp32_groups)
        self.dynamic_loss_scale = state_dict["dynamic_loss_scale"]
        for name in self._scale_names():
            setattr(self, name, state_dict[name])
        self.optimizer.load_state_dict(state_dict["optimizer_state_dict"])
        for current, saved in zip(self.fp32_groups, state_dict["fp32_groups"]):
            for master, value in zip(current, saved):
                master.data.copy_(value.data)


def _all_finite(numbers: list[Tensor]) -> bool:
    """Whether all 0-dim tensors are finite, read back in one go."""
    if not numbers:
        return True
    return bool(torch.isfinite(torch.stack([number.to(numbers[0].device) for number in numbers])).all())


def _norm(grads: list[Tensor]) -> Tensor | None:
    """The norm of all gradients of a group, 0-dim float32; not finite if one of them isn't."""
    return norms(in_float32(grads)).norm() if grads else None
