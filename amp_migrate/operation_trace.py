"""The operations that lead to each backward: name, input dtypes, and whether autocast was on.

Only operations with gradients enabled count (evaluation, clipping and optimizer steps don't), and only in the thread
that started the trace.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

#: reads of values, and bookkeeping of autograd and the profiler, which no precision depends on
_IGNORED = ("aten._local_scalar_dense", "aten.detach", "aten.alias", "profiler.")


class OperationTrace:
    """Collects operations into sequences; each distinct one is kept once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._sequence_numbers: dict[tuple[int, ...], int] = {}
        self._current: list[int] = []
        self._finished: list[int] = []
        self._pauses = 0
        self._modes = contextlib.ExitStack()
        self.autocast_on = False

    @property
    def operations(self) -> tuple[str, ...]:
        """Every distinct operation, in the order of appearance."""
        return tuple(self._numbers)

    @property
    def sequences(self) -> tuple[tuple[int, ...], ...]:
        """Every distinct sequence of indices into ``operations``."""
        return tuple(self._sequence_numbers)

    def start(self) -> None:
        """Begin tracing in this thread."""
        self._modes.enter_context(_AutocastMode(self))
        self._modes.enter_context(_DispatchMode(self))

    def stop(self) -> None:
        """End tracing."""
        self._modes.close()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what happens in the block."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    def add(self, name: str, dtypes: list[str]) -> None:
        """One operation was called."""
        if self._pauses or not torch.is_grad_enabled() or name.startswith(_IGNORED):
            return
        text = f"{name}({','.join(dtypes)}) {'on' if self.autocast_on else 'off'}"
        self._current.append(self._numbers.setdefault(text, len(self._numbers)))

    def end_sequence(self) -> None:
        """A backward starts: what was collected led to it, up to the gradient of 1 that torch makes for its root."""
        if self._current and self.operations[self._current[-1]].startswith("aten.ones_like("):
            self._current.pop()
        sequence = tuple(self._current)
        self._finished.append(self._sequence_numbers.setdefault(sequence, len(self._sequence_numbers)))
        self._current = []

    def take_sequences(self) -> tuple[int, ...]:
        """The sequences since the last call."""
        taken, self._finished = tuple(self._finished), []
        return taken


class _AutocastMode(TorchFunctionMode):
    """Looks at autocast before each function that Python calls; below autograd its state can't be seen."""

    def __init__(self, trace: OperationTrace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._trace.autocast_on = _is_autocast_on()
        return func(*args, **(kwargs or {}))


class _DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation with the dtypes that it computes in."""

    def __init__(self, trace: OperationTrace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._trace = trace

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        flat, _ = tree_flatten((args, kwargs or {}))
        dtypes = [str(a.dtype).replace("torch.", "") for a in flat if isinstance(a, Tensor)]
        self._trace.add(func._schema.name.replace("::", "."), dtypes)
        return func(*args, **(kwargs or {}))


def _is_autocast_on() -> bool:
    from .apex import _native

    return any(_native.is_autocast_on(device_type) for device_type in ("cuda", "cpu", "xpu"))
