"""What Apex's fused layers do about autocast: cast their arguments, then compute without it.

Source: apex/_autocast_utils.py. Apex looked at CUDA's autocast only; here each tensor's own device counts.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Sequence

import torch
from torch import Tensor

from . import _native

__all__ = ["_cast_if_autocast_enabled"]


def _get_autocast_dtypes() -> Sequence[torch.dtype]:
    """The dtypes that CUDA can autocast to. Asks the device."""
    can_bfloat16 = getattr(torch.cuda, "is_bf16_supported", None)  # torch 1.10
    if can_bfloat16 is not None and torch.cuda.is_available() and can_bfloat16():
        return [torch.half, torch.bfloat16]
    return [torch.half]


def _get_current_dtype(dtype: torch.dtype | None = None) -> torch.dtype:
    """The dtype that CUDA autocasts to, float32 where it is off (``dtype`` is ignored, as in Apex)."""
    state = _native.get_autocast("cuda")
    return (state.dtype or torch.half) if state.enabled else torch.float


def _cast_if_autocast_enabled(*args: Any) -> tuple[Any, ...]:
    """Return ``args`` with tensors cast to autocast's dtype, if it is on for their device; float64 stays."""
    return tuple(_cast(arg) for arg in args)


def _cast(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _cast_tensor(value)
    if type(value) in (list, tuple):
        return type(value)(_cast(item) for item in value)
    if type(value) is dict:
        return {key: _cast(item) for key, item in value.items()}
    return value


def _cast_tensor(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    state = _native.get_autocast(tensor.device.type)
    # torch before 1.10 knows CUDA's autocast only and doesn't name its dtype
    return tensor.to(state.dtype or torch.half) if state.enabled else tensor


_is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None)


def is_compiling() -> bool:
    """Whether ``torch.compile`` is tracing this call."""
    return _is_compiling is not None and bool(_is_compiling())


def autocast_off(device_type: str) -> Any:
    """A context manager: autocast off for ``device_type``. Compiled code needs none, it casts where it computes."""
    if is_compiling() or not _native.is_autocast_on(device_type):
        return contextlib.nullcontext()
    return _switched_off(device_type)


@contextlib.contextmanager
def _switched_off(device_type: str) -> Iterator[None]:
    # not a nested autocast block: leaving one may drop the weights that were cast
    _native.switch_autocast(device_type, False)
    try:
        yield
    finally:
        _native.switch_autocast(device_type, True)
