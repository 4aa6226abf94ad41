"""Torch's own single-kernel updates, where they compute what Apex's kernels did: plain float32 tensors on a GPU.

Elsewhere the list operations of ``_tensor_lists`` do it. The kernels have none of: missing bias correction, decay after
the momentum, half parameters with float32 state.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
from torch import Tensor

#: device types whose kernels compute as Apex's; a CPU's rounds the decay differently
FUSED_DEVICE_TYPES = {"cuda"}


def kernel_for(name: str, *lists: list[Tensor]) -> Callable[..., Any] | None:
    """``torch._fused_<name>_`` if torch has it and every tensor suits it."""
    kernel = getattr(torch, f"_fused_{name}_", None)
    if kernel is None or lists[0][0].device.type not in FUSED_DEVICE_TYPES:
        return None
    return kernel if all(map(_is_plain, zip(*lists))) else None


def _is_plain(tensors: Sequence[Tensor]) -> bool:
    """Float32, no subclass (a DTensor), and laid out alike."""
    stride = tensors[0].stride()
    return all(
        type(t) in (Tensor, torch.nn.Parameter) and t.dtype == torch.float32 and t.stride() == stride for t in tensors
    )


def adam_in_one_kernel(
    params: list[Tensor],
    grads: list[Tensor],
    moments: list[Tensor],
    squares: list[Tensor],
    group: dict[str, Any],
    decoupled: bool,
) -> bool:
    """Update by ``torch._fused_adam(w)_``; False, and nothing done, where it can't."""
    kernel = kernel_for("adamw" if decoupled else "adam", params, grads, moments, squares)
    if kernel is None or not group["bias_correction"] or isinstance(group["step"], Tensor):
        return False
    if isinstance(group["lr"], Tensor):
        return False
    step = torch.full((), float(group["step"]), device=params[0].device)
    beta1, beta2 = group["betas"]
    kernel(
        params,
        grads,
        moments,
        squares,
        [],
        [step] * len(params),
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
    )
    return True


def sgd_in_one_kernel(
    params: list[Tensor], grads: list[Tensor], buffers: list[Tensor], group: dict[str, Any], first: bool
) -> bool:
    """Update by ``torch._fused_sgd_``; False, and nothing done, where it can't."""
    kernel = kernel_for("sgd", params, grads, buffers)
    if kernel is None or isinstance(group["lr"], Tensor):
        return False
    kernel(
        params,
        grads,
        buffers if group["momentum"] else [],
        weight_decay=group["weight_decay"],
        momentum=group["momentum"],
        lr=group["lr"],
        dampening=group["dampening"],
        nesterov=group["nesterov"],
        maximize=False,
        is_first_step=first,
    )
    return True
