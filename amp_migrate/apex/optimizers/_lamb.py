"""LAMB's arithmetic: Adam's direction from clipped gradients, then a step per tensor by the ratio of two norms.

Source: csrc/multi_tensor_lamb.cu, csrc/multi_tensor_lamb_mp.cu (formulas only). As there, the direction overwrites the
gradient, so that no memory is needed for it.
"""

from __future__ import annotations

from typing import Sequence

import torch
from torch import Tensor

from ._base import Bucket, Group
from ._moments import bias_corrections, roots_and_factor, update_moments_
from ._tensor_lists import Factor, add_, add_product_, add_quotient_, in_float32, norms, scale_, zero_


def global_norm(buckets: Sequence[Bucket], device: torch.device) -> Tensor:
    """The norm of all gradients together, 0-dim float32 on ``device``."""
    parts = [norms(in_float32(bucket.grads)).to(device) for bucket in buckets]
    return torch.cat(parts).norm() if parts else torch.zeros((), device=device)


def clip_divisor(norm: Tensor, max_norm: Factor) -> Tensor:
    """What gradients are divided by so that their norm is at most ``max_norm``; 1 where it is already."""
    return torch.where(norm > max_norm, norm / max_norm, torch.ones_like(norm))


def direction_(
    work: Bucket, group: Group, decoupled: bool, divisor: Tensor, unscale: Factor = 1.0, keep: Tensor | None = None
) -> None:
    """Update both averages, and write the direction of the step into the gradients.

    Args:
        work: float32 lists.
        group: betas, eps, weight_decay, step, bias_correction, grad_averaging.
        decoupled: weight decay joins the direction; else the gradient.
        divisor: what gradients are divided by (clipping).
        unscale: what gradients are multiplied by.
        keep: 0 leaves the averages as they are.
    """
    params, grads, decay = work.params, work.grads, group["weight_decay"]
    moments, squares = work.state["exp_avg"], work.state["exp_avg_sq"]
    scale_(grads, unscale / divisor)
    if decay and not decoupled:
        add_(grads, params, decay)
    update_moments_(moments, squares, grads, group["betas"], bool(group["grad_averaging"]), keep)
    roots, factor = roots_and_factor(squares, bias_corrections(group), group["eps"])
    zero_(grads)
    if decay and decoupled:
        add_(grads, params, decay)
    add_quotient_(grads, moments, roots, factor)


def step_by_trust_ratio_(
    params: list[Tensor], directions: list[Tensor], rate: Factor, adaptive: bool, keep: Tensor | None = None
) -> None:
    """``p -= rate * ratio * direction``, where the ratio is that of the norms of both, and 1 if one of them is zero.

    Args:
        adaptive: False: the ratio is 1.
        keep: 0 leaves the parameters as they are.
    """
    if keep is not None:
        rate = rate * keep
    if not adaptive:
        add_(params, directions, -rate)
        return
    ours, theirs = norms(params), norms(directions)
    ratios = torch.where((ours != 0) & (theirs != 0), ours / theirs, torch.ones_like(ours))
    add_product_(params, directions, list((ratios * -_scalar(rate, ratios)).unbind()), 1.0)


def _scalar(rate: Factor, like: Tensor) -> Factor:
    return rate.reshape(()).to(like.device) if isinstance(rate, Tensor) else rate
