"""Gradient clipping by the norm of all gradients together.

Source: apex/contrib/clip_grad/clip_grad.py.
"""

from __future__ import annotations

from typing import Iterable, Union

import torch
from torch import Tensor

_tensor_or_tensors = Union[Tensor, Iterable[Tensor]]


def clip_grad_norm_(
    parameters: _tensor_or_tensors, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Scale the gradients of ``parameters`` in place, so that their norm is ``max_norm`` at most.

    Args:
        parameters: a tensor, or tensors; those without a gradient are left out.
        max_norm: the largest norm allowed.
        norm_type: the p of the norm; ``inf`` for the largest value.
        error_if_nonfinite: raise if the norm is nan or inf, leaving the gradients as they are.

    Returns:
        The norm before clipping, 0-dim; 0 without gradients.

    Raises:
        RuntimeError: if asked to, see above.
    """
    params = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    params = [param for param in params if param.grad is not None]
    if not params:
        return torch.tensor(0.0)
    if error_if_nonfinite:  # here rather than in torch, which has it from 1.10
        _refuse_nonfinite(params, float(norm_type))
    return torch.nn.utils.clip_grad_norm_(params, float(max_norm), float(norm_type))


def _refuse_nonfinite(params: list[Tensor], norm_type: float) -> None:
    device = params[0].device
    each = [torch.norm(p.grad.detach(), norm_type).to(device) for p in params if p.grad is not None]
    if not bool(torch.isfinite(torch.norm(torch.stack(each), norm_type))):
        raise RuntimeError(
            f"The gradients' norm of order {norm_type} isn't finite, so they can't be clipped by it. Look for nan in "
            "the loss, skip this step, or pass error_if_nonfinite=False."
        )
