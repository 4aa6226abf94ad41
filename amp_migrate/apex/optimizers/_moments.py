"""The running averages that Adam and LAMB share, with factors that are numbers, or tensors in a step without the host.

Source: csrc/multi_tensor_adam.cu, csrc/multi_tensor_lamb.cu (formulas only).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._tensor_lists import Factor, add_, add_number_, add_product_, scale_, square_roots


def update_moments_(
    moments: list[Tensor],
    squares: list[Tensor],
    grads: list[Tensor],
    betas: tuple[float, float],
    averaging: bool = True,
    keep: Tensor | None = None,
) -> None:
    """``m = b1 m + (1 - b1) g`` (without ``averaging``: ``+ g``) and ``v = b2 v + (1 - b2) g g``, in place.

    Args:
        keep: 0-dim float32; 0 leaves both as they are, 1 updates them. None: update.
    """
    beta1, beta2 = betas
    share1: Factor = 1.0 - beta1 if averaging else 1.0
    if keep is None:
        old1: Factor = beta1
        old2: Factor = beta2
        share2: Factor = 1.0 - beta2
    else:
        old1, old2 = 1.0 - keep * (1.0 - beta1), 1.0 - keep * (1.0 - beta2)
        share1, share2 = keep * share1, keep * (1.0 - beta2)
    scale_(moments, old1)
    add_(moments, grads, share1)
    scale_(squares, old2)
    add_product_(squares, grads, grads, share2)


def roots_and_factor(
    squares: list[Tensor], corrections: tuple[Factor, Factor], eps: float
) -> tuple[list[Tensor], Factor]:
    """``(d, f)`` so that the corrected ``m / (sqrt(v) + eps)`` is ``f m / d``: one operation less for each list."""
    correction1, correction2 = corrections
    root = correction2**0.5
    roots = square_roots(squares)
    add_number_(roots, eps * root)
    return roots, root / correction1


def bias_corrections(group: dict[str, Any]) -> tuple[Factor, Factor]:
    """``1 - beta ** step`` for both betas (ones without ``bias_correction``); 0-dim tensors if the step is a tensor."""
    if not group["bias_correction"]:
        return 1.0, 1.0
    step = group["step"]
    first, second = (1.0 - beta ** _exponent(step) for beta in group["betas"])
    if isinstance(step, Tensor):
        return first.float(), second.float()
    return first, second


def _exponent(step: Any) -> Any:
    """A step tensor in the best float of its device, and not below one: nothing is kept of a step that didn't count."""
    if not isinstance(step, Tensor):
        return step
    return step.reshape(()).to(torch.float32 if step.device.type == "mps" else torch.float64).clamp(min=1.0)
