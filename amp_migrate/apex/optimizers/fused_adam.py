"""``FusedAdam``: Adam or AdamW with Apex's defaults, state and rounding.

Source: apex/optimizers/fused_adam.py, csrc/multi_tensor_adam.cu.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...notices import notice_once
from . import _without_host
from ._base import Bucket, Closure, FusedOptimizer, Group, evaluate, refuse_amsgrad
from ._fused_kernels import adam_in_one_kernel
from ._moments import bias_corrections, roots_and_factor, update_moments_
from ._tensor_lists import Factor, added, step_along_

#: arguments of the class of this name until 2019-08, which lives on in apex.contrib.optimizers
_OLD_ARGUMENTS = ("eps_inside_sqrt", "max_grad_norm", "use_mt", "amp_scale_adjustment")


class FusedAdam(FusedOptimizer):
    """AdamW (``adam_w_mode=True``) or Adam with L2 regularisation, on any device.

    A call with arguments of the old class (before 2019-08: ``max_grad_norm``, ``eps_inside_sqrt``, ``use_mt``,
    ``amp_scale_adjustment``) makes an ``apex.contrib.optimizers.FusedAdam``.

    Checkpoints of ``torch.optim.AdamW`` and ``Adam`` load as they are. The other way the step count moves::

        saved = fused.state_dict()
        for group in saved["param_groups"]:
            for i in group["params"]:
                if i in saved["state"]:
                    saved["state"][i]["step"] = torch.tensor(float(group["step"]))
        torch.optim.AdamW(params).load_state_dict(saved)

    Args:
        params: parameters (float16, bfloat16 or float32) or groups of them.
        lr: learning rate.
        bias_correction: divide the averages by ``1 - beta ** step``.
        betas: decay of the averages of gradient and squared gradient.
        eps: added to the root of the second, after its correction.
        adam_w_mode: decoupled weight decay; else it is added to the gradient.
        weight_decay: its factor. The default is 0 (AdamW's is 0.01).
        amsgrad: not supported.
        set_grad_none: ``zero_grad`` sets gradients to None; else to zero in place.
        capturable: learning rate and step count are tensors on the device, and a GradScaler leaves unscaling and
            skipping to the step: it can be recorded in a CUDA graph.
        master_weights: keep float32 copies of half parameters here (with ``capturable``). State dicts lack them.

    Raises:
        RuntimeError: for ``amsgrad``, or ``master_weights`` without ``capturable``.
    """

    _settings: ClassVar[tuple[str, ...]] = (
        "set_grad_none",
        "adam_w_mode",
        "capturable",
        "master_weights",
        "param_groups_master",
    )
    _state_names: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    _dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float16, torch.float32, torch.bfloat16)
    adam_w_mode: int = 1
    capturable: bool = False
    master_weights: bool = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        old = [name for name in _OLD_ARGUMENTS if name in kwargs]
        if cls is not FusedAdam or not old:
            return super().__new__(cls)
        from ..contrib.optimizers.fused_adam import FusedAdam as OldFusedAdam

        notice_once(
            f"FusedAdam({old[0]}=...) is the class from before August 2019: an apex.contrib.optimizers.FusedAdam is "
            "made. Leave the argument out for the present one."
        )
        return OldFusedAdam(*args, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _show_arguments(cls)

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
    ) -> None:
        refuse_amsgrad("FusedAdam", amsgrad)
        if master_weights and not capturable:
            raise RuntimeError(
                "Master weights is currently only supported with the capturable version. Pass capturable=True too."
            )
        self.adam_w_mode = 1 if adam_w_mode else 0
        self.set_grad_none = set_grad_none
        self.capturable = capturable
        self.master_weights = master_weights
        #: float32 copies of half parameters, group by group; filled at the first step
        self.param_groups_master: list[dict[str, Any]] = []
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)

    def _state_dtype(self, param: Tensor) -> torch.dtype:
        return torch.float32

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """A GradScaler asks: does ``step`` unscale and skip by itself?"""
        return self.capturable

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; with ``capturable`` its learning rate becomes a tensor beside its parameters."""
        super().add_param_group(param_group)
        self._place(self.param_groups[-1])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what Apex's FusedAdam or torch's Adam or AdamW saved; see the base class."""
        super().load_state_dict(state_dict)
        self.param_groups_master = []
        for group in self.param_groups:
            self._place(group)

    def _place(self, group: Group) -> None:
        """Tensors where ``capturable`` wants them, numbers otherwise."""
        if not group["params"]:
            return
        device = group["params"][0].device
        kinds = {"lr": (torch.float32, ()), "step": (torch.int32, (1,))}
        for key, (dtype, shape) in kinds.items():
            if key not in group:
                continue
            if self.capturable:
                group[key] = _without_host.tensor_on(device, group[key], dtype, shape)
            elif key == "step" and isinstance(group[key], Tensor):
                group[key] = int(group[key].item())

    @torch.no_grad()
    def step(  # type: ignore[override,unused-ignore]
        self,
        closure: Closure | None = None,
        grads: Any = None,
        output_params: Any = None,
        scale: Any = None,
        grad_norms: Any = None,
        grad_scaler: Any = None,
    ) -> Any:
        """Update the parameters; return what ``closure`` (called first) returned.

        Args:
            closure: recomputes the loss.
            grads, output_params, scale, grad_norms: of the old class; must be None.
            grad_scaler: the GradScaler that leaves unscaling and skipping to a ``capturable`` step.

        Raises:
            RuntimeError: for the old class's arguments, sparse gradients and dtypes that Apex didn't take.
        """
        if any(argument is not None for argument in (grads, output_params, scale, grad_norms)):
            raise RuntimeError(
                "FusedAdam has been updated: call step() with no arguments. The class whose step takes grads, "
                "output_params, scale and grad_norms is apex.contrib.optimizers.FusedAdam."
            )
        loss = evaluate(closure)
        answer = _without_host.ask(grad_scaler, self) if self.capturable else None
        for index, group in enumerate(self.param_groups):
            if not group["params"]:
                continue
            if answer is not None:
                self._step_without_host(index, group, answer)
                continue
            self.count_step(group)
            for bucket in self.buckets(group):
                work = bucket.in_float32()
                if not adam_in_one_kernel(*_lists(work), group, bool(self.adam_w_mode)):
                    self._update(work, group)
                bucket.store(work)
        return loss

    def _step_without_host(self, index: int, group: Group, answer: _without_host.Answer) -> None:
        _without_host.count_step(group, answer, group["params"][0].device)
        masters = self._masters(index)
        for bucket in self.buckets(group):
            overflow = answer.on(bucket.params[0].device)
            work = bucket.in_float32()
            work.grads = _without_host.usable_gradients(work.grads, overflow)
            work.params = [masters.get(param, own) for param, own in zip(bucket.params, work.params)]
            self._update(work, group, overflow.keep)
            bucket.store(work)

    def _masters(self, index: int) -> dict[Tensor, Tensor]:
        """The float32 copies of one group's half parameters, by parameter."""
        if not self.master_weights:
            return {}
        _without_host.full_precision_copies(self, self.param_groups_master, lambda p: p.dtype != torch.float32)
        return _without_host.copies_of(self.param_groups[index], self.param_groups_master[index])

    def _update(self, work: Bucket, group: Group, keep: Tensor | None = None) -> None:
        params, grads, moments, squares = _lists(work)
        decay = group["weight_decay"]
        rate: Factor = group["lr"] if keep is None else group["lr"] * keep
        if decay and not self.adam_w_mode:
            grads = added(grads, params, decay)
        update_moments_(moments, squares, grads, group["betas"], keep=keep)
        roots, factor = roots_and_factor(squares, bias_corrections(group), group["eps"])
        step_along_(params, moments, roots, rate * factor, decay / factor if self.adam_w_mode else 0.0)


def _show_arguments(cls: type) -> None:
    """Let ``inspect.signature`` show the arguments of ``__init__``, not those of ``__new__``."""
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]  # type: ignore[misc]
    cls.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]


_show_arguments(FusedAdam)


def _lists(work: Bucket) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:
    return work.params, work.grads, work.state["exp_avg"], work.state["exp_avg_sq"]
