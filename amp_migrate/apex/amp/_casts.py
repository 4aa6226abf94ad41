"""Where casts are on: autocast around the models, between them, and never in backward or ``step``.

Apex's O1 patched torch's functions once, for the whole process. Here native autocast is switched on for the thread
that called ``initialize`` ("ambient"), and inside the forward of initialized models in every other thread.
Weights that were cast are kept only during a forward: an ambient cache would go stale after ``step()``.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Callable, Iterator

import torch
from torch.autograd import Variable

from ...notices import notice_once
from .. import _native
from ._amp_state import _amp_state
from ._patches import patches


@dataclass(frozen=True)
class CastPlan:
    """Autocast to ``dtype`` on these device types."""

    device_types: tuple[str, ...]
    dtype: torch.dtype

    @staticmethod
    def for_devices(device_types: tuple[str, ...], dtype: torch.dtype) -> CastPlan:
        """A plan for those devices that can do it; a notice for each that can't (float16 on a CPU before torch 2.2)."""
        able = tuple(t for t in device_types if _native.autocast_works(t, dtype))
        for missing in sorted(set(device_types) - set(able)):
            notice_once(
                f"This torch ({torch.__version__}) can't autocast to {dtype} on {missing!r}: the program runs in "
                "float32 there. Use a newer torch, or another device, for mixed precision."
            )
        return CastPlan(able, dtype)


class casts_off:
    """Autocast off in this thread, without counting as an autocast block: a model called inside casts again."""

    __slots__ = ("_was_on",)

    def __enter__(self) -> None:
        plan = _amp_state.ambient
        self._was_on: list[str] = []
        if plan is not None:
            self._was_on = [t for t in plan.device_types if _native.is_autocast_on(t)]
            for device_type in self._was_on:
                _native.switch_autocast(device_type, False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for device_type in self._was_on:
            _native.switch_autocast(device_type, True)


@contextlib.contextmanager
def casts_on(plan: CastPlan, *, cache: bool) -> Iterator[None]:
    """Autocast on in this thread, without counting as a block; ``cache`` keeps cast weights meanwhile."""
    before = [(t, _native.get_autocast(t)) for t in plan.device_types]
    cached = _native.get_cache_enabled()
    for device_type in plan.device_types:
        _native.set_autocast(device_type, _native.AutocastState(True, plan.dtype))
    _native.set_cache_enabled(cache)
    try:
        yield
    finally:
        for device_type, state in before:
            _native.set_autocast(device_type, state)
        _native.set_cache_enabled(cached)


def call_with_casts(plan: CastPlan, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a model's forward: casts on if it is the outermost block of its thread, as they are if it is inside one.

    A block around it may be the user's own ``torch.autocast`` or ``amp.disable_casts()``; it keeps its say.
    """
    if _native.is_compiling() and all(_native.is_autocast_on(t) for t in plan.device_types):
        return function(*args, **kwargs)  # dynamo before 2.7 breaks the graph at the nesting counter
    depth = torch.autocast_increment_nesting()
    try:
        if depth > 1:
            return function(*args, **kwargs)
        with casts_on(plan, cache=not _native.is_tracing()):
            return function(*args, **kwargs)
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()


@contextlib.contextmanager
def disable_casts() -> Iterator[None]:
    """Run the block without casts, also inside models called from it. Restores them after an exception too.

    Raises:
        AttributeError: before ``initialize`` or ``init`` (as Apex).
    """
    if not hasattr(_amp_state, "handle"):
        raise AttributeError("amp.disable_casts() needs an earlier amp.initialize(..., opt_level='O1') or amp.init().")
    plan = _amp_state.ambient
    with contextlib.ExitStack() as stack:
        for device_type in plan.device_types if plan is not None else ():
            stack.enter_context(_native.autocast_block(device_type, plan.dtype, enabled=False))  # type: ignore[union-attr]
        yield


def switch_ambient_on(plan: CastPlan) -> None:
    """Turn casts on in this thread until ``uninstall()``, and keep them out of backward, steps and forked workers."""
    if _amp_state.ambient is None:
        _start_ambient()
    known = _amp_state.ambient.device_types if _amp_state.ambient is not None else ()
    devices = (*known, *(t for t in plan.device_types if t not in known))
    _set_ambient(CastPlan(devices, plan.dtype))
    for device_type in plan.device_types:
        before = _native.get_autocast(device_type)
        patches.record(lambda t=device_type, s=before: _native.set_autocast(t, s))  # type: ignore[misc]
        _native.set_autocast(device_type, _native.AutocastState(True, plan.dtype))
    _native.set_cache_enabled(False)
    torch.clear_autocast_cache()


def _set_ambient(plan: CastPlan | None) -> None:
    before = _amp_state.ambient
    patches.record(lambda: setattr(_amp_state, "ambient", before))
    _amp_state.ambient = plan


def _start_ambient() -> None:
    cached = _native.get_cache_enabled()
    patches.record(lambda: _native.set_cache_enabled(cached))
    _keep_casts_out_of_backward()
    _cast_in_users_backward()
    _register_after_fork()


def _keep_casts_out_of_backward() -> None:
    """Run the autograd engine with casts off: under autocast, the backward of a float32 region became float16."""
    engine = _EngineWithoutCasts(Variable._execution_engine)
    patches.set_attribute(Variable, "_execution_engine", engine)


class _EngineWithoutCasts:
    """Torch's autograd engine, run with casts off. Every other attribute is the engine's own."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        with casts_off():
            return self._engine.run_backward(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def _cast_in_users_backward() -> None:
    """Casts on inside ``backward`` of users' own autograd Functions, where Apex's patches were on too.

    Without, one that multiplies a float16 by a float32 matrix fails. Torch's own Functions stay as they are.
    """
    base = torch.autograd.function.BackwardCFunction
    original: Callable[..., Any] = base.apply

    def apply(self: Any, *args: Any) -> Any:
        plan = _amp_state.ambient
        if plan is None or self._forward_cls.__module__.startswith("torch."):
            return original(self, *args)
        with casts_on(plan, cache=False):
            return original(self, *args)

    patches.set_attribute(base, "apply", apply)


_registered_after_fork = False


def _register_after_fork() -> None:
    """Data-loading workers that are forked from a CPU run shouldn't cast (can't be unregistered; does nothing then)."""
    global _registered_after_fork
    if not _registered_after_fork and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_no_casts_in_child)
        _registered_after_fork = True


def _no_casts_in_child() -> None:
    if _amp_state.ambient is not None:
        for device_type in _amp_state.ambient.device_types:
            _native.switch_autocast(device_type, False)
