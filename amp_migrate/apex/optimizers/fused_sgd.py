"""``FusedSGD``: SGD with momentum, and weight decay before or after it.

Source: apex/optimizers/fused_sgd.py, csrc/multi_tensor_sgd_kernel.cu.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import optimizer as _torch_optimizer

from .. import _native
from ._base import Bucket, Closure, FusedOptimizer, Group, evaluate
from ._fused_kernels import sgd_in_one_kernel
from ._tensor_lists import add_, added, scale_, scaled

#: torch's mark of an argument that groups must give if the constructor doesn't
required: Any = getattr(_torch_optimizer, "required", object())


class FusedSGD(FusedOptimizer):
    """SGD with Apex's arguments, on any device; float32 arithmetic for half parameters.

    Checkpoints of ``torch.optim.SGD`` load as they are, and the reverse.

    Args:
        params: floating parameters or groups of them.
        lr: learning rate; required, here or in every group.
        momentum: momentum factor.
        dampening: share of the gradient that the momentum leaves out.
        weight_decay: L2 factor.
        nesterov: Nesterov momentum.
        wd_after_momentum: add the weight decay after the momentum.
        materialize_master_grads: kept as an attribute; master gradients always exist here.
        set_grad_none: ``zero_grad`` sets gradients to None; else to zero in place.

    Raises:
        ValueError: for negative arguments, or ``nesterov`` without momentum or with dampening.
    """

    _settings: ClassVar[tuple[str, ...]] = (
        "set_grad_none",
        "wd_after_momentum",
        "materialize_master_grads",
        "most_recent_scale",
        "scale_set_by_backward",
    )
    _state_names: ClassVar[tuple[str, ...]] = ("momentum_buffer",)
    _step_count_in: ClassVar[str] = "nowhere"
    _dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float16, torch.float32, torch.bfloat16, torch.float64)
    set_grad_none: bool = False
    wd_after_momentum: bool = False
    materialize_master_grads: bool = True
    #: what the gradients of the next step are scaled by, and whether somebody said so
    most_recent_scale: float = 1.0
    scale_set_by_backward: bool = False

    def __init__(
        self,
        params: Any,
        lr: Any = required,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        wd_after_momentum: bool = False,
        materialize_master_grads: bool = True,
        set_grad_none: bool = False,
    ) -> None:
        check_sgd_arguments(lr, momentum, dampening, weight_decay, nesterov)
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults)
        self.wd_after_momentum = wd_after_momentum
        self.materialize_master_grads = materialize_master_grads
        self.most_recent_scale = 1.0
        self.scale_set_by_backward = False
        self.set_grad_none = set_grad_none

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("nesterov", False)

    def _kind(self, param: Tensor, state: dict[str, Any]) -> Any:
        """A momentum that starts with this gradient is set, not blended."""
        return param.device, param.dtype, state.get("momentum_buffer") is None

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:  # type: ignore[override,unused-ignore]
        """Update the parameters; return what ``closure`` (called first) returned."""
        loss = evaluate(closure)
        for group in self.param_groups:
            for bucket in self.buckets(group):
                work = bucket.in_float32()
                self._update(work, group, first=bucket.kind[2])
                bucket.store(work)
        self.most_recent_scale = 1.0
        self.scale_set_by_backward = False
        return loss

    def _update(self, work: Bucket, group: Group, first: bool) -> None:
        grads, buffers = work.grads, work.state["momentum_buffer"]
        if self.most_recent_scale != 1.0:
            grads = scaled(grads, 1.0 / self.most_recent_scale)
        if self.wd_after_momentum or not sgd_in_one_kernel(work.params, grads, buffers, group, first):
            sgd_(work.params, grads, buffers, group, first, self.wd_after_momentum)


def check_sgd_arguments(lr: Any, momentum: float, dampening: float, weight_decay: float, nesterov: bool) -> None:
    """Raise torch's and Apex's ValueError for arguments out of range."""
    if lr is not required and lr < 0.0:
        raise ValueError(f"Invalid learning rate: {lr}. It must be 0 or more.")
    if momentum < 0.0:
        raise ValueError(f"Invalid momentum value: {momentum}. It must be 0 or more.")
    if weight_decay < 0.0:
        raise ValueError(f"Invalid weight_decay value: {weight_decay}. It must be 0 or more.")
    if nesterov and (momentum <= 0 or dampening != 0):
        raise ValueError("Nesterov momentum requires a momentum and zero dampening")


def sgd_(
    params: list[Tensor], grads: list[Tensor], buffers: list[Tensor], group: Group, first: bool, decay_last: bool
) -> None:
    """One step of SGD in place; ``first``: the buffers start as the gradients. Gradients stay as they are."""
    decay, momentum = group["weight_decay"], group["momentum"]
    update = grads
    if decay and not decay_last:
        update = added(update, params, decay)
    if momentum:
        if first:
            _native.copy_into(buffers, update)
        else:
            scale_(buffers, momentum)
            add_(buffers, update, 1.0 - group["dampening"])
        update = added(update, buffers, momentum) if group["nesterov"] else buffers
    if decay and decay_last:
        update = added(update, params, decay)
    add_(params, update, -group["lr"])
