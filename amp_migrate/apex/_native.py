"""Native mixed precision on every torch from 1.6: the one module of the drop-in that knows torch versions.

Everything is found by looking for the attribute, never by reading ``torch.__version__``.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any, Callable, Iterable, NamedTuple, Sequence

import torch
from torch import Tensor

_HAS_DEVICE_API = hasattr(torch, "get_autocast_dtype")  # torch 2.4
_HAS_CACHE_SWITCH = hasattr(torch, "set_autocast_cache_enabled")  # torch 1.10
#: device type → the middle of the getter and setter names of torch 1.10 to 2.3
_OLD_NAMES = {"cuda": ("", "gpu_"), "cpu": ("cpu_", "cpu_"), "xpu": ("xpu_", "xpu_"), "hpu": ("hpu_", "hpu_")}


class AutocastState(NamedTuple):
    """Autocast of one device type in the current thread."""

    enabled: bool
    dtype: torch.dtype | None


def _old(kind: str, device_type: str, part: int) -> Callable[..., Any] | None:
    """The setter or getter of one device type before torch 2.4, e.g. ``torch.set_autocast_cpu_enabled``."""
    middle = _OLD_NAMES.get(device_type, (device_type + "_",) * 2)[part]
    suffix = "enabled" if part == 0 else "dtype"
    return getattr(torch, f"{kind}_autocast_{middle}{suffix}", None)


def get_autocast(device_type: str) -> AutocastState:
    """Return autocast's state for ``device_type`` in this thread."""
    if _HAS_DEVICE_API:
        return AutocastState(torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type))
    is_enabled, get_dtype = _old("is", device_type, 0), _old("get", device_type, 1)
    return AutocastState(bool(is_enabled and is_enabled()), get_dtype() if get_dtype else None)


def set_autocast(device_type: str, state: AutocastState) -> None:
    """Set autocast's state for ``device_type`` in this thread, without entering a block."""
    if _HAS_DEVICE_API:
        torch.set_autocast_enabled(device_type, state.enabled)
        if state.dtype is not None:
            torch.set_autocast_dtype(device_type, state.dtype)
        return
    set_enabled, set_dtype = _old("set", device_type, 0), _old("set", device_type, 1)
    if set_enabled is not None:
        set_enabled(state.enabled)
    if set_dtype is not None and state.dtype is not None:
        set_dtype(state.dtype)


def is_autocast_on(device_type: str) -> bool:
    """Whether operations on ``device_type`` are autocast in this thread."""
    if _HAS_DEVICE_API:
        return bool(torch.is_autocast_enabled(device_type))
    return get_autocast(device_type).enabled


def switch_autocast(device_type: str, enabled: bool) -> None:
    """Turn autocast for ``device_type`` on or off in this thread, leaving its dtype."""
    if _HAS_DEVICE_API:
        torch.set_autocast_enabled(device_type, enabled)
    else:
        set_autocast(device_type, AutocastState(enabled, None))


def get_cache_enabled() -> bool:
    """Whether autocast keeps cast weights; always true before torch 1.10, which has no switch."""
    return bool(torch.is_autocast_cache_enabled()) if _HAS_CACHE_SWITCH else True


def set_cache_enabled(enabled: bool) -> None:
    """Let autocast keep cast weights, or not (before torch 1.10: no effect)."""
    if _HAS_CACHE_SWITCH:
        torch.set_autocast_cache_enabled(enabled)


def autocast_block(device_type: str, dtype: torch.dtype, enabled: bool) -> Any:
    """A real autocast context manager: ``torch.autocast`` (1.10), else ``torch.cuda.amp.autocast``."""
    if hasattr(torch, "autocast"):
        return torch.autocast(device_type, dtype=dtype, enabled=enabled)
    return torch.cuda.amp.autocast(enabled=enabled)


@functools.lru_cache(maxsize=None)
def autocast_works(device_type: str, dtype: torch.dtype) -> bool:
    """Whether ``device_type`` can be autocast to ``dtype``. Tries it on a CPU; asks on other devices."""
    if device_type == "cpu":
        return _casts_on_cpu(dtype)
    if hasattr(torch, "amp") and hasattr(torch.amp, "is_autocast_available"):  # torch 2.4
        return bool(torch.amp.is_autocast_available(device_type))
    return _old("set", device_type, 0) is not None


def _casts_on_cpu(dtype: torch.dtype) -> bool:
    """Multiply two numbers under CPU autocast: float16 raises before torch 2.2, and torch 1.6 to 1.9 have none."""
    if not hasattr(torch, "autocast"):
        return False
    one = torch.ones(1, 1)
    before, cache = get_autocast("cpu"), get_cache_enabled()
    try:
        set_cache_enabled(False)
        set_autocast("cpu", AutocastState(True, dtype))
        return bool(torch.mm(one, one).dtype == dtype)
    except RuntimeError:
        return False
    finally:
        set_autocast("cpu", before)
        set_cache_enabled(cache)


@functools.lru_cache(maxsize=None)
def computes_in(device_type: str, dtype: torch.dtype) -> bool:
    """Whether a model of ``dtype`` runs on ``device_type``. Tries the common layers on a CPU, trusts other devices."""
    if dtype == torch.float32 or device_type != "cpu":
        return True
    x, weight = torch.ones(1, 1, 2, 2, dtype=dtype), torch.ones(2, dtype=dtype)
    f = torch.nn.functional
    try:
        f.linear(x, x[0, 0]).tanh().softmax(-1)
        f.conv2d(x, x)
        f.layer_norm(f.gelu(f.relu(x)), (2,), weight, weight)
    except RuntimeError:
        return False
    return True


def grad_scaler_class(device_type: str, sharded: bool = False) -> type | None:
    """The torch GradScaler that really scales on ``device_type``; None where torch has none (a CPU before 2.3).

    With ``sharded``, the one of FSDP (1.12): it tells all processes of an overflow in one's shard.
    """
    if sharded:
        scaler: type = importlib.import_module("torch.distributed.fsdp.sharded_grad_scaler").ShardedGradScaler
        return scaler
    if hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler
    if device_type == "cuda":
        return torch.cuda.amp.GradScaler
    return None


def takes_device(scaler_class: type) -> bool:
    """Whether the scaler's constructor takes a device type (``torch.amp.GradScaler``, and FSDP's since 2.3)."""
    return "device" in inspect.signature(scaler_class).parameters


def is_sharded(modules: Iterable[torch.nn.Module]) -> bool:
    """Whether a module is wrapped by FSDP, or its parameters were sharded by ``fully_shard`` (DTensors)."""
    return any(
        cls.__name__ in ("FullyShardedDataParallel", "FSDPModule") for module in modules for cls in type(module).__mro__
    )


def local(tensor: Tensor) -> Tensor:
    """The part of a DTensor that this process holds, sharing its memory; any other tensor itself."""
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local is not None else tensor


def add_into(totals: Sequence[Tensor], terms: Sequence[Tensor]) -> None:
    """``total += term`` for every pair, in one call per dtype where torch can."""
    with torch.no_grad():
        if hasattr(torch, "_foreach_add_") and totals and not any(t.is_sparse for t in (*totals, *terms)):
            torch._foreach_add_(list(totals), list(terms))
        else:
            for total, term in zip(totals, terms):
                total.add_(term)


def copy_into(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """``target.copy_(source)`` for every pair, in one call where torch can (2.1)."""
    with torch.no_grad():
        if hasattr(torch, "_foreach_copy_") and targets:
            torch._foreach_copy_(list(targets), list(sources))
        else:
            for target, source in zip(targets, sources):
                target.copy_(source)


def multiply_and_check(tensors: Sequence[Tensor], factor: Tensor) -> Tensor:
    """Multiply ``tensors`` in place; return a flag (0-dim float32): 1 if one of them isn't finite, else 0."""
    flag = torch.zeros((), dtype=torch.float32, device=factor.device)
    with torch.no_grad():
        for tensor in map(local, tensors):
            tensor.mul_(factor.to(tensor.device))
            bad = (~torch.isfinite(tensor).all()).float()
            flag = torch.max(flag, bad.to(flag.device))
    return flag


def is_tracing() -> bool:
    """Whether ``torch.jit.trace`` is recording in this thread."""
    return torch._C._get_tracing_state() is not None


def is_compiling() -> bool:
    """Whether torch.compile is tracing this frame."""
    compiler = getattr(torch, "compiler", None)
    asks = getattr(compiler, "is_compiling", None)
    return bool(asks is not None and asks())


def process_group_size() -> int:
    """The number of processes that train together: 1 without an initialised process group."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return 1
