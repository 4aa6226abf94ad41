"""What opening one file may take, in all pickles that are in it, and whom it has asked for."""

from __future__ import annotations

from ..errors import Damaged
from .keys import KeyCheck

#: about how much memory a tree may take, counted by operation; a checkpoint of 180,000 tensors stays under it
MAX_MEMORY = 1 << 30


class Limits:
    """Counts what has been taken. One per file, however many pickles it consists of."""

    def __init__(self) -> None:
        self._left = MAX_MEMORY
        self.keys = KeyCheck()
        #: every class and function that the file has named and the table doesn't know, also those it threw away again
        self.strangers: set[str] = set()

    def spend(self, memory: int) -> None:
        """Raise Damaged once the file has taken too much."""
        self._left -= memory
        if self._left < 0:
            raise Damaged(f"it would take more than {MAX_MEMORY >> 20} MiB of memory without its tensors")
