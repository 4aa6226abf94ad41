"""Copying the bytes of storages into the new file, in parts, so that memory stays small whatever their size."""

from __future__ import annotations

import contextlib
import io
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Iterator

from ..dtypes import ITEM_SIZES, SWAPPED_SIZES, swapped
from ..errors import Damaged
from ..records import CHUNK, FileRange, Storage
from .hints import begin_to_write

#: after so many bytes the disk begins to write them, while the next ones are copied
_WRITE_BACK = 1 << 24


class Copier:
    """Appends storages to ``file``. Keeps the files that they come from open meanwhile."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sources: dict[Path, io.FileIO] = {}
        self._open = contextlib.ExitStack()
        self._buffer = memoryview(bytearray(CHUNK))
        self._unwritten = 0

    def __enter__(self) -> Copier:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def append(self, storage: Storage) -> int:
        """Write the bytes of ``storage``, little endian, and return their CRC-32.

        Raises:
            Damaged: its file has changed.
        """
        known = None if storage.big_endian else storage.source.crc32
        crc = 0
        for part in self._little_endian(storage):
            if known is None:
                crc = zlib.crc32(part, crc)
            self._file.write(part)
            self._written(len(part))
        return crc if known is None else known

    def _parts(self, storage: Storage) -> Iterator[Any]:
        """Yield the bytes. A part is only good until the next one is asked for."""
        source = storage.source
        if not isinstance(source, FileRange):
            yield from source.chunks()
            return
        file = self._source(source.path)
        source.check(file)
        file.seek(source.offset)
        left = source.length
        while left:
            count = file.readinto(self._buffer[: min(left, CHUNK)])
            if not count:
                raise Damaged(f"{source.path}: {left} bytes are missing; it was changed meanwhile, run this again")
            left -= count
            yield self._buffer[:count]

    def _source(self, path: Path) -> io.FileIO:
        if path not in self._sources:
            self._sources[path] = self._open.enter_context(io.FileIO(path, "rb"))
        return self._sources[path]

    def _little_endian(self, storage: Storage) -> Iterator[Any]:
        item = SWAPPED_SIZES.get(storage.dtype, ITEM_SIZES[storage.dtype])
        if not storage.big_endian or item == 1:
            yield from self._parts(storage)
            return
        rest = b""
        for part in self._parts(storage):
            data = rest + bytes(part)
            whole = len(data) // item * item
            yield swapped(data[:whole], item)
            rest = data[whole:]

    def _written(self, count: int) -> None:
        self._unwritten += count
        if self._unwritten >= _WRITE_BACK:
            self._file.flush()
            begin_to_write(self._file.fileno(), self._file.tell() - self._unwritten, self._unwritten)
            self._unwritten = 0
