"""Writing torch's zip format: everything stored, each storage at a multiple of 64 bytes, sizes of 64 bits as needed.

The entry ``.format_version`` is left out on purpose: it promises torch that offsets can be computed from the sizes as
torch's own writer lays them out (torch/serialization.py, ``_get_offset``), with a descriptor behind each entry.

Sources: caffe2/serialize/inline_container.cc (``getPadding``), APPNOTE.TXT 6.3.9.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import BinaryIO, Iterable

from ..dtypes import byte_size
from ..errors import Damaged
from ..records import Storage
from .copying import Copier

ROOT = "archive"
ALIGNMENT = 64
#: what torch.save writes since 1.6, and all versions since then read
VERSION = b"3\n"

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_END64_LOCATOR = struct.Struct("<4sLQL")
#: the biggest number that is written in 32 bits; the one after it says that the number stands in 64 bits elsewhere
LARGEST = 0xFFFFFFFE
_ELSEWHERE = 0xFFFFFFFF
#: the same for the number of entries, in 16 bits
MOST_ENTRIES = 0xFFFE
_ENTRIES_ELSEWHERE = 0xFFFF
_UTF8 = 0x800
_NEEDS = 45  # the version that brought 64-bit sizes
#: 1980-01-01, the first day of the format: the same tree gives the same file
_DATE = (1 << 5) | 1
_PADDING = b"FB"


@dataclass(frozen=True)
class _Written:
    name: bytes
    crc32: int
    size: int
    header: int


class ZipWriter:
    """Writes entries one after the other, and the directory at the end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._entries: list[_Written] = []

    def add(self, name: str, data: bytes) -> None:
        self._begin(name, len(data), zlib.crc32(data))
        self._file.write(data)

    def add_storage(self, name: str, storage: Storage, copier: Copier) -> None:
        """Copy a storage; raise Damaged if its source has another size than it has."""
        size = byte_size(storage)
        if storage.source.length != size:
            raise Damaged(f"a storage has {size} bytes, and its source {storage.source.length}")
        known = None if storage.big_endian else storage.source.crc32
        header = self._begin(name, size, known or 0)
        start = self._file.tell()
        crc = copier.append(storage)
        if self._file.tell() - start != size:
            raise Damaged(f"a storage gave {self._file.tell() - start} bytes instead of {size}")
        if crc != (known or 0):
            self._set_crc(header, crc)

    def _begin(self, name: str, size: int, crc: int) -> int:
        header = self._file.tell()
        raw = f"{ROOT}/{name}".encode()
        is_wide = size > LARGEST
        extra = struct.pack("<HHQQ", 1, 16, size, size) if is_wide else b""
        start = header + _LOCAL.size + len(raw) + len(extra) + 4
        padding = -start % ALIGNMENT
        extra += struct.pack("<2sH", _PADDING, padding) + b"Z" * padding
        narrow = _narrow(size)
        fixed = _LOCAL.pack(b"PK\x03\x04", _NEEDS, _UTF8, 0, 0, _DATE, crc, narrow, narrow, len(raw), len(extra))
        self._file.write(fixed + raw + extra)
        self._entries.append(_Written(raw, crc, size, header))
        return header

    def _set_crc(self, header: int, crc: int) -> None:
        end = self._file.tell()
        self._file.seek(header + 14)
        self._file.write(struct.pack("<L", crc))
        self._file.seek(end)
        last = self._entries[-1]
        self._entries[-1] = _Written(last.name, crc, last.size, header)

    def finish(self) -> None:
        start = self._file.tell()
        for entry in self._entries:
            self._file.write(_central(entry))
        end = self._file.tell()
        count, size = len(self._entries), end - start
        if count > MOST_ENTRIES or size > LARGEST or start > LARGEST:
            self._file.write(_END64.pack(b"PK\x06\x06", 44, _NEEDS, _NEEDS, 0, 0, count, count, size, start))
            self._file.write(_END64_LOCATOR.pack(b"PK\x06\x07", 0, end, 1))
        few = _ENTRIES_ELSEWHERE if count > MOST_ENTRIES else count
        self._file.write(_END.pack(b"PK\x05\x06", 0, 0, few, few, _narrow(size), _narrow(start), 0))


def _narrow(number: int) -> int:
    return _ELSEWHERE if number > LARGEST else number


def _central(entry: _Written) -> bytes:
    numbers = [each for each in (entry.size, entry.size, entry.header) if each > LARGEST]
    wide = struct.pack(f"<{len(numbers)}Q", *numbers)
    size, header = _narrow(entry.size), _narrow(entry.header)
    extra = struct.pack("<HH", 1, len(wide)) + wide if wide else b""
    lengths = (len(entry.name), len(extra), 0, 0, 0, 0)
    fixed = (b"PK\x01\x02", _NEEDS, _NEEDS, _UTF8, 0, 0, _DATE, entry.crc32, size, size, *lengths, header)
    return _CENTRAL.pack(*fixed) + entry.name + extra


def write_zip(file: BinaryIO, pickle: bytes, storages: Iterable[Storage]) -> None:
    """Write a torch file with this pickle; the storages' keys are their places."""
    writer = ZipWriter(file)
    writer.add("data.pkl", pickle)
    writer.add("byteorder", b"little")
    with Copier(file) as copier:
        for key, storage in enumerate(storages):
            writer.add_storage(f"data/{key}", storage, copier)
    writer.add("version", VERSION)
    writer.finish()
