"""Batch statistics over several processes, and the normalisation that uses them, in plain torch on any device.

Source: apex/parallel/sync_batchnorm_kernel.py; statistics as in optimized_sync_batchnorm_kernel.py (processes may
have batches of different sizes).
"""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def joint_statistics(x: Tensor, process_group: Any = None) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and biased variance per channel over the batches of all processes, and their number of values.

    Args:
        x: (N, C, ...), float32 or float64; N may be 0 in some of the processes.
        process_group: the processes that take part; None for all.

    Returns:
        mean (C,), variance (C,), count (1,), in ``x``'s dtype.
    """
    count = x.new_full((1,), x.numel() // max(x.size(1), 1))
    if x.numel():
        var, mean = torch.var_mean(x, _all_but_channels(x), unbiased=False)
    else:
        var, mean = x.new_zeros(2, x.size(1)).unbind(0)
    own = torch.cat([mean, var, count])
    parts = [torch.empty_like(own) for _ in range(_size(process_group))]
    torch.distributed.all_gather(parts, own, **_group(process_group))
    means, variances, counts = torch.split(torch.stack(parts), [mean.numel(), mean.numel(), 1], dim=1)
    total = counts.sum(0)
    weights = counts / total.clamp(min=1)
    mean = (means * weights).sum(0)
    return mean, ((variances + (means - mean) ** 2) * weights).sum(0), total


class SyncBatchnormFunction(torch.autograd.Function):
    """Normalise with statistics that all processes share; backward sums over the processes.

    ``apply(x, weight, bias, mean, var, eps, process_group, world_size, count)``: ``x`` (N, C, ...); ``weight`` and
    ``bias`` (C,) or None; ``mean`` and biased ``var`` (C,) are constants to autograd, whose dependence on ``x`` the
    backward accounts for; ``count`` (1,) is the number of values per channel in all processes, None where all
    ``world_size`` of them have as many. Gradients of weight and bias are this process's own.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        var: Tensor,
        eps: float,
        process_group: Any,
        world_size: int,
        count: Tensor | None = None,
    ) -> Tensor:
        inv_std = torch.rsqrt(var + eps)
        if count is None:
            count = mean.new_full((1,), x.numel() // x.size(1) * world_size)
        ctx.save_for_backward(x, weight, mean, inv_std, count)
        ctx.process_group, ctx.world_size = process_group, world_size
        out = (x - _per_channel(mean, x)) * _per_channel(inv_std, x)
        if weight is not None:
            out = out * _per_channel(weight, x)
        if bias is not None:
            out = out + _per_channel(bias, x)
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator,unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inv_std, count = ctx.saved_tensors
        dims = _all_but_channels(x)
        normal = (x - _per_channel(mean, x)) * _per_channel(inv_std, x)
        grad_bias, grad_weight = grad.sum(dims), (grad * normal).sum(dims)
        grad_x = None
        if ctx.needs_input_grad[0]:
            sums = torch.stack([grad_bias, grad_weight])
            if ctx.world_size > 1:
                torch.distributed.all_reduce(sums, **_group(ctx.process_group))
            mean_grad, mean_grad_normal = (sums / count.clamp(min=1)).unbind(0)
            grad_x = grad - _per_channel(mean_grad, x) - normal * _per_channel(mean_grad_normal, x)
            grad_x = grad_x * _per_channel(inv_std if weight is None else inv_std * weight, x)
        wanted = [g if needed else None for g, needed in zip((grad_weight, grad_bias), ctx.needs_input_grad[1:3])]
        return (grad_x, *wanted, None, None, None, None, None, None)


def _all_but_channels(x: Tensor) -> list[int]:
    return [0, *range(2, x.dim())]


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    """``values`` (C,) in a shape that broadcasts over ``x`` (N, C, ...)."""
    shape: Sequence[int] = [1, -1] + [1] * (x.dim() - 2)
    return values.view(shape)


def _size(process_group: Any) -> int:
    return torch.distributed.get_world_size(**_group(process_group))


def _group(process_group: Any) -> dict[str, Any]:
    """As keyword arguments: what stands for all processes changed between versions of torch."""
    return {} if process_group is None else {"group": process_group}
