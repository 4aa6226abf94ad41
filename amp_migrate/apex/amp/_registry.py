"""Functions that the program wants cast: decorators, ``register_*_function``, and edits of ``amp.lists``.

Source: apex/amp/amp.py and wrap.py. A registration counts from the next ``initialize`` or ``init`` on; a decorator
looks at each call whether casts are on.
"""

from __future__ import annotations

import functools
import types
from typing import Any, Callable, Dict, List, Tuple

import torch

from .. import _native
from . import utils
from ._amp_state import _amp_state
from ._patches import patches
from .lists import functional_overrides, tensor_overrides, torch_overrides

CastArguments = Callable[[Tuple[Any, ...], Dict[str, Any]], Tuple[List[Any], Dict[str, Any]]]

_LIST_MODULES = (functional_overrides, torch_overrides, tensor_overrides)
_OF_TORCH = (torch, torch.Tensor, torch.nn.functional)


def casts_are_on() -> bool:
    """Whether casts are on in this thread right now."""
    plan = _amp_state.ambient
    return plan is not None and any(_native.is_autocast_on(t) for t in plan.device_types)


def _cast_all(dtype: torch.dtype) -> CastArguments:
    return lambda args, kwargs: utils.casted_args(utils.cast_to(dtype), args, kwargs)


def _promote(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Cast to float32 if the floating types of the arguments differ."""
    if len(utils.collect_fp_tensor_types(args, kwargs)) <= 1:
        return list(args), kwargs
    return utils.casted_args(utils.maybe_float, args, kwargs)


def _as_they_are(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    return list(args), kwargs


TO_HALF, TO_FLOAT, TO_BFLOAT16 = _cast_all(torch.float16), _cast_all(torch.float32), _cast_all(torch.bfloat16)

_pending: list[tuple[Any, str, CastArguments]] = []


def decorate(function: Any, cast: CastArguments) -> Any:
    """Return ``function`` with its arguments cast while casts are on. Staticmethods are taken in either order."""
    if isinstance(function, staticmethod):
        return staticmethod(decorate(function.__func__, cast))

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not casts_are_on():
            return function(*args, **kwargs)
        new_args, new_kwargs = cast(args, kwargs)
        return function(*new_args, **new_kwargs)

    return wrapper


def register(module: Any, name: str, cast: CastArguments) -> None:
    """Remember to patch ``module.name`` when casts start.

    Raises:
        ValueError: if there is no such function.
    """
    if not hasattr(module, name):
        raise ValueError(f"No function named {name} in module {module}.")
    _pending.append((module, name, cast))


def apply_registered_functions() -> None:
    """Patch what was registered since the last time, and what the program changed in ``amp.lists``."""
    for module, name, cast in (*_pending, *_list_edits()):
        _patch(module, name, cast)
    _pending.clear()


def _patch(module: Any, name: str, cast: CastArguments) -> None:
    if not hasattr(module, name):
        return
    original = getattr(module, name)
    wrapped = _decorate_leaf(original, cast) if _is_leaf(module, original) else decorate(original, cast)
    wrapped._amp_cast = cast
    patches.set_attribute(module, name, wrapped)


def _is_leaf(module: Any, function: Any) -> bool:
    """Whether autocast itself would cast the call again: then the registration must win, as it did under Apex."""
    return any(module is m for m in _OF_TORCH) or isinstance(function, types.BuiltinFunctionType)


def _decorate_leaf(function: Any, cast: CastArguments) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        plan = _amp_state.ambient
        on = [t for t in plan.device_types if _native.is_autocast_on(t)] if plan is not None else []
        if plan is None or not on:
            return function(*args, **kwargs)
        new_args, new_kwargs = cast(args, kwargs)
        with _native.autocast_block(on[0], plan.dtype, enabled=False):
            return function(*new_args, **new_kwargs)

    return wrapper


def _list_edits() -> list[tuple[Any, str, CastArguments]]:
    """What the program added to or took from the lists: autocast can't be told, so such functions are patched."""
    edits: list[tuple[Any, str, CastArguments]] = []
    for module in _LIST_MODULES:
        before = module.AS_IMPORTED
        now = {"FP16_FUNCS": module.FP16_FUNCS, "FP32_FUNCS": module.FP32_FUNCS, "CASTS": module.CASTS}
        casts = {"FP16_FUNCS": TO_HALF, "FP32_FUNCS": TO_FLOAT, "CASTS": _promote}
        listed = {name for names in now.values() for name in names}
        for kind, names in now.items():
            edits += [(module.MODULE, n, casts[kind]) for n in names if n not in before.get(kind, ())]
        for kind in ("FP16_FUNCS", "FP32_FUNCS"):
            edits += [(module.MODULE, n, _as_they_are) for n in before[kind] if n not in listed]
    if not functional_overrides.BANNED_FUNCS:
        _amp_state.allow_banned = True
    return [(m, n, c) for m, n, c in edits if getattr(getattr(m, n, None), "_amp_cast", None) is not c]


Registrar = Callable[[Any, str], None]
Decorator = Callable[[Any], Any]


def make_decorator(cast: CastArguments | None, doc: str) -> Decorator:
    """A decorator that casts arguments; None promotes mixed types to float32."""

    def decorator(fn: Any) -> Any:
        return decorate(fn, cast or _promote)

    decorator.__doc__ = doc
    return decorator


def make_registrar(cast: CastArguments | None, doc: str) -> Registrar:
    """A ``register_*_function(module, name)``; None promotes mixed types to float32."""

    def registrar(module: Any, name: str) -> None:
        register(module, name, cast or _promote)

    registrar.__doc__ = doc
    return registrar
