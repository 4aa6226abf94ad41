"""Reading a pickle's bytes, where every length that the file claims is compared with what there is first."""

from __future__ import annotations

from typing import BinaryIO

from ..errors import Damaged

#: a line of a text opcode; only protocol 0 has long ones, for strings
MAX_LINE = 1 << 26


class Stream:
    """The bytes of ``file`` from its position up to ``end``. Knows where it is, for messages."""

    def __init__(self, file: BinaryIO, end: int, name: str) -> None:
        self.file = file
        self.end = end
        self.name = name
        self.position = file.tell()

    def read(self, count: int) -> bytes:
        """Return exactly ``count`` bytes, or raise Damaged before anything is allocated for them."""
        if count > self.end - self.position:
            raise Damaged(f"{self.name} says that {count} bytes follow, and has {self.end - self.position} left")
        data = self.file.read(count)
        if len(data) != count:
            raise Damaged(f"{self.name} ends early: somebody else is writing it; run this again when that is done")
        self.position += count
        return data

    def line(self) -> bytes:
        """Return what stands before the next line end."""
        data = self.file.readline(min(self.end - self.position, MAX_LINE))
        if not data.endswith(b"\n"):
            raise Damaged(f"{self.name} has a line without end at byte {self.position}")
        self.position += len(data)
        return data[:-1]

    def skip(self, count: int) -> None:
        """Go on behind ``count`` bytes, which the caller has seen to be there."""
        self.position += count
        self.file.seek(self.position)

    @property
    def at_end(self) -> bool:
        return self.position >= self.end
