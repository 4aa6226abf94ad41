"""Python's pickle machine, made inert: it builds plain data and records, and imports and calls nothing.

What a pickle does is a list of operations on a stack. Here each is a small function (``plain_opcodes.py``,
``object_opcodes.py``). A class or function that the file names becomes a ``Global``; calling it builds what the
reviewed table (``known_globals.py``) says, or a ``PickledObject`` that only tells what the file wanted.

Sources: Lib/pickle.py, Lib/pickletools.py of Python 3.13 (the operations of all protocols, 0 to 5).
"""

from __future__ import annotations

import struct
from typing import Any, Callable, Mapping, Tuple

from ..errors import CannotConvert, Damaged, Unsafe
from .limits import Limits
from .stream import Stream

HIGHEST_PROTOCOL = 5

#: an operation, and about how many bytes its result takes
Opcode = Tuple[Callable[["Machine"], None], int]

STOP = b"."


def no_persistent_ids(saved: Any) -> Any:
    raise Unsafe("the pickle asks its reader for an object by a persistent id; only torch's own files may do that")


class Machine:
    """Runs one pickle. ``persistent_load`` turns torch's names of storages into records."""

    def __init__(
        self,
        stream: Stream,
        limits: Limits,
        persistent_load: Callable[[Any], Any] = no_persistent_ids,
        load_nested: Callable[[bytes, Limits], Any] | None = None,
    ) -> None:
        self.stream = stream
        self.persistent_load = persistent_load
        #: opens a storage that was saved by itself inside a pickle (``torch.storage._load_from_bytes``)
        self.load_nested = load_nested
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []
        #: a dict, so that a file that numbers its objects from four billion on costs nothing
        self.memo: dict[int, Any] = {}
        self.protocol = 0
        self.limits = limits
        self.spend = limits.spend
        self.keys = limits.keys
        #: whether anything in the tree may have to become plain data, or be refused
        self.has_strangers = False

    def run(self, opcodes: Mapping[bytes, Opcode]) -> Any:
        """Return what the pickle builds.

        Raises:
            Damaged: it is broken, or takes more memory than the limit.
            Unsafe: it uses a way to call something that nothing can stand for (extension codes and the like).
        """
        start = self.stream.position
        try:
            return self._run(opcodes)
        except CannotConvert as error:
            raise type(error)(f"{error} ({self._where(start)})") from error
        except IndexError as error:
            raise Damaged(f"the pickle takes more from its stack than it put there ({self._where(start)})") from error
        except (KeyError, ValueError, TypeError, OverflowError, AttributeError, struct.error, RecursionError) as error:
            raise Damaged(f"the pickle is broken: {type(error).__name__}: {error} ({self._where(start)})") from error

    def _run(self, opcodes: Mapping[bytes, Opcode]) -> Any:
        read, spend = self.stream.read, self.spend
        while True:
            code = read(1)
            if code == STOP:
                break
            opcode = opcodes.get(code)
            if opcode is None:
                raise Damaged(f"byte {code[0]:#04x} is no operation of a pickle")
            operation, cost = opcode
            spend(cost)
            operation(self)
        if self.outer or len(self.stack) != 1:
            raise Damaged("the pickle stops in the middle of an object")
        return self.stack[0]

    def _where(self, start: int) -> str:
        return f"{self.stream.name}, byte {self.stream.position - start}"

    def read_text(self, count: int) -> bytes:
        """Return ``count`` bytes that become a value, and so count."""
        data = self.stream.read(count)
        self.spend(count)
        return data

    def pop_mark(self) -> list[Any]:
        """Return what was put on the stack since the last mark."""
        items = self.stack
        self.stack = self.outer.pop()
        return items
