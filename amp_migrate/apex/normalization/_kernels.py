"""What Apex's normalization kernels compute, in plain torch: statistics in float32 at least, a chosen output dtype.

Source: csrc/layer_norm_cuda.cpp and csrc/layer_norm_cuda_kernel.cu.
"""

from __future__ import annotations

import numbers
from typing import Any, Sequence, Union, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import _native
from .._autocast_utils import autocast_off, is_compiling

Shape = Union[int, Sequence[int]]
HALVES = (torch.float16, torch.bfloat16)


def as_shape(normalized_shape: Shape) -> tuple[int, ...]:
    """``normalized_shape`` as a tuple; a single int stands for the last dimension."""
    if isinstance(normalized_shape, numbers.Integral):
        return (int(normalized_shape),)
    return tuple(cast(Sequence[int], normalized_shape))


def layer_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, shape: Shape, eps: float, dtype: torch.dtype
) -> Tensor:
    """Layer normalization of ``input`` (*, ``shape``), rounded once to ``dtype``.

    Computed in the widest dtype of the arguments: torch's kernels take one dtype only.
    """
    wide = _widest(input, weight, bias)
    with autocast_off(input.device.type):
        normalized = F.layer_norm(_to(input, wide), as_shape(shape), _to(weight, wide), _to(bias, wide), eps)
    return cast(Tensor, _to(normalized, dtype))


def rms_norm(input: Tensor, weight: Tensor | None, shape: Shape, eps: float, dtype: torch.dtype) -> Tensor:
    """Root-mean-square normalization of ``input`` (*, ``shape``) in ``dtype``.

    Rounds where Apex's kernel rounds: before the product with the weight, which is then taken in ``dtype``.

    Raises:
        RuntimeError: if the last dimensions of ``input`` aren't ``shape``.
    """
    dims = as_shape(shape)
    # comparing sizes would warn in a trace, which has them as tensors
    if not _native.is_tracing() and tuple(input.shape[input.dim() - len(dims) :]) != dims:
        raise RuntimeError(
            f"The input has shape {tuple(input.shape)}, but is to be normalized over {dims}: its last dimensions "
            "must be these. Give the layer the shape of the features, or reshape the input."
        )
    x = _to(input, _at_least_float32(input.dtype))
    mean_square = x.pow(2).mean(tuple(range(-len(dims), 0)), keepdim=True)
    normalized = _to(x * torch.rsqrt(mean_square + eps), dtype)
    return cast(Tensor, normalized if weight is None else _to(weight, dtype) * normalized)


def rms_dtype(input: Tensor, weight: Tensor) -> torch.dtype:
    """The output dtype of ``fused_rms_norm_affine``: the input's.

    Where Apex's kernel refuses, with a float32 input and a half weight, it is the weight's: so does Apex itself off
    CUDA, and transformers' T5, whose next layer is half, needs it.
    """
    return weight.dtype if weight.dtype in HALVES and input.dtype == torch.float32 else input.dtype


def _widest(input: Tensor, *others: Tensor | None) -> torch.dtype:
    wide = input.dtype
    for other in others:
        if other is not None and other.dtype != wide:
            wide = torch.float64 if torch.float64 in (wide, other.dtype) else torch.float32
    if wide in HALVES and not is_compiling() and not _native.computes_in(input.device.type, wide):
        return torch.float32
    return wide


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _to(tensor: Any, dtype: torch.dtype) -> Any:
    """``tensor.to(dtype)``, which leaves no node in a trace where there is nothing to do."""
    return tensor if tensor is None or tensor.dtype == dtype else tensor.to(dtype)
