"""``F.binary_cross_entropy`` as under Apex's O1: refused for float16, fine for float32.

CUDA's autocast refuses it for any input; CPU's casts it to float32. Apex's rule is put in their place as a kernel on
the Autocast key, without touching ``torch.nn.functional``; where torch has no ``torch.library`` (1.6 to 1.10), the
function itself is patched.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import Tensor

from .. import _native
from ._amp_state import _amp_state
from ._patches import patches

BANNED_MESSAGE = (
    "amp does not work out-of-the-box with `F.binary_cross_entropy` or `torch.nn.BCELoss` on float16: their input must "
    "be a float32 tensor. Leave out the sigmoid before it and use torch.nn.BCEWithLogitsLoss, or cast the input with "
    ".float(), or call amp.register_float_function(torch, 'sigmoid') before amp.initialize. "
    "amp.init(allow_banned=True) before amp.initialize casts to float32 instead of raising."
)

#: device type → its autocast dispatch key
_AUTOCAST_KEYS = {"cuda": "AutocastCUDA", "cpu": "AutocastCPU", "xpu": "AutocastXPU", "hpu": "AutocastHPU"}
_HALF_TYPES = (torch.float16, torch.bfloat16)
_DISPATCH_NAMES = ("_ExcludeDispatchKeyGuard", "DispatchKeySet", "DispatchKey")


def guard_binary_cross_entropy() -> None:
    """Apply Apex's rule on the device types that are cast."""
    plan = _amp_state.ambient
    for device_type in plan.device_types if plan is not None else ():
        key = _AUTOCAST_KEYS.get(device_type)
        if key is None or not _has_kernel_api():
            _patch_function()
        elif key not in _guarded:
            _register_kernel(key)


#: dispatch key → the torch.library.Library that holds our kernel
_guarded: dict[str, Any] = {}


def _has_kernel_api() -> bool:
    library = getattr(torch, "library", None)
    return hasattr(library, "Library") and all(hasattr(torch._C, name) for name in _DISPATCH_NAMES)


def _register_kernel(key: str) -> None:
    library: Any = torch.library.Library("aten", "IMPL", key)  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that its own kernel is overridden, which is the point
        library.impl("binary_cross_entropy", functools.partial(_kernel, key))
    _guarded[key] = library

    def undo() -> None:
        _guarded.pop(key, None)
        if hasattr(library, "_destroy"):
            library._destroy()

    patches.record(undo)


def _kernel(key: str, self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    tensors = _checked(self, target, weight)
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    with torch._C._ExcludeDispatchKeyGuard(keys):
        return torch.ops.aten.binary_cross_entropy(*tensors, reduction)  # type: ignore[no-any-return]


def _checked(*tensors: Any) -> Any:
    if not _amp_state.allow_banned and any(isinstance(t, Tensor) and t.dtype == torch.float16 for t in tensors):
        raise NotImplementedError(BANNED_MESSAGE)
    return tuple(t.float() if isinstance(t, Tensor) and t.dtype in _HALF_TYPES else t for t in tensors)


def _patch_function() -> None:
    functional = torch.nn.functional
    original = functional.binary_cross_entropy
    if getattr(original, "_amp_guarded", False):
        return

    @functools.wraps(original)
    def binary_cross_entropy(input: Any, target: Any, weight: Any = None, *args: Any, **kwargs: Any) -> Any:
        plan = _amp_state.ambient
        on = [t for t in plan.device_types if _native.is_autocast_on(t)] if plan is not None else []
        if not on:
            return original(input, target, weight, *args, **kwargs)
        input, target, weight = _checked(input, target, weight)
        with _native.autocast_block(on[0], plan.dtype, enabled=False):  # type: ignore[union-attr]
            return original(input, target, weight, *args, **kwargs)

    binary_cross_entropy._amp_guarded = True  # type: ignore[attr-defined]
    patches.set_attribute(functional, "binary_cross_entropy", binary_cross_entropy)
