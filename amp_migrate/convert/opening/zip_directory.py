"""The directory of a zip file, read with more distrust than a library has: every number is compared with the file.

Source: the format's description by its maker (APPNOTE.TXT 6.3.9, sections 4.3 and 4.5.3).
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import BinaryIO, Mapping

from ..errors import Damaged
from ..tree import short_repr

STORED, DEFLATED = 0, 8
#: bytes that compressed entries of one file may grow to, and by which factor; torch itself never compresses
MAX_INFLATED = 1 << 28
MAX_RATIO = 200

#: a checkpoint has as many as it has tensors
MAX_ENTRIES = 500_000

_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_LONGEST_COMMENT = 0xFFFF
_MAX32 = 0xFFFFFFFF
_MAX16 = 0xFFFF
_ENCRYPTED, _SIZES_FOLLOW, _UTF8 = 0x1, 0x8, 0x800


@dataclass(frozen=True)
class Entry:
    """One entry, as the directory tells it."""

    name: str
    raw_name: bytes
    method: int
    flags: int
    crc32: int
    packed_size: int
    size: int
    header: int


class ZipDirectory:
    """The entries of a zip file by name.

    Raises:
        Damaged: for what isn't a zip file, and for what a writer of checkpoints doesn't write: entries that are
            encrypted, overlap, have one name, or a name that leads out of a folder; sizes that aren't true.
    """

    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file = file
        self._start, count, size = self._find(length)
        self.entries: Mapping[str, Entry] = self._read(count, size)
        self._ends = self._check_overlaps()
        self._inflated = 0

    def _at(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        data = self._file.read(size)
        if len(data) != size:
            raise Damaged("the zip file ends in the middle of its directory")
        return data

    def _find(self, length: int) -> tuple[int, int, int]:
        """Return where the directory is, its number of entries and its size."""
        tail_size = min(length, _END.size + _LONGEST_COMMENT)
        tail = self._at(length - tail_size, tail_size)
        position = tail.rfind(b"PK\x05\x06")
        if position < 0 or len(tail) - position < _END.size:
            raise Damaged("the zip file has no directory at its end: it was cut off; copy or download it again")
        _, disk, first_disk, _, count, size, start, comment = _END.unpack_from(tail, position)
        if position + _END.size + comment != len(tail) or disk or first_disk:
            raise Damaged("the end of the zip file is broken; copy or download it again")
        end = length - tail_size + position
        if _MAX16 in (count,) or _MAX32 in (size, start):
            count, size, start, end = self._find64(end, count, size, start)
        if count > MAX_ENTRIES:
            raise Damaged(f"the zip file has {count} entries, more than {MAX_ENTRIES}")
        if start + size > end or count * _CENTRAL.size > size:
            raise Damaged(f"the zip file's directory says {count} entries in {size} bytes at {start}; it has no room")
        return start, count, size

    def _find64(self, end: int, count: int, size: int, start: int) -> tuple[int, int, int, int]:
        if end < _END64_LOCATOR.size:
            raise Damaged("the zip file's directory is broken")
        magic, _, offset, _ = _END64_LOCATOR.unpack(self._at(end - _END64_LOCATOR.size, _END64_LOCATOR.size))
        if magic != b"PK\x06\x07":
            return count, size, start, end  # exactly that many entries, without the 64-bit form
        if offset + _END64.size > end:
            raise Damaged("the zip file's directory is broken")
        magic, _, _, _, _, _, _, count, size, start = _END64.unpack(self._at(offset, _END64.size))
        if magic != b"PK\x06\x06":
            raise Damaged("the zip file's directory is broken")
        return count, size, start, offset

    def _read(self, count: int, size: int) -> dict[str, Entry]:
        self._file.seek(self._start)
        entries: dict[str, Entry] = {}
        left = size
        for _ in range(count):
            fixed = self._file.read(_CENTRAL.size)
            if len(fixed) < _CENTRAL.size or fixed[:4] != b"PK\x01\x02":
                raise Damaged("the zip file's directory is broken")
            (_, _, _, flags, method, _, _, crc, packed, plain, name_size, extra_size, comment_size, _, _, _, header) = (
                _CENTRAL.unpack(fixed)
            )
            rest_size = name_size + extra_size + comment_size
            left -= _CENTRAL.size + rest_size
            rest = self._file.read(rest_size)
            if left < 0 or len(rest) < rest_size:
                raise Damaged("the zip file's directory is broken")
            packed, plain, header = _wide(rest[name_size : name_size + extra_size], packed, plain, header)
            name = _checked_name(rest[:name_size], flags)
            if name in entries:
                raise Damaged(f"the zip file has two entries called {short_repr(name)}")
            entries[name] = Entry(name, rest[:name_size], method, flags, crc, packed, plain, header)
        return entries

    def _check_overlaps(self) -> Mapping[str, int]:
        """Return where what follows each entry begins.

        Raise Damaged if two entries use the same bytes: that is how a small file pretends to be a big one.
        """
        ends: dict[str, int] = {}
        end = self._start
        for entry in sorted(self.entries.values(), key=lambda each: -each.header):
            if entry.header + _LOCAL.size + len(entry.raw_name) + entry.packed_size > end:
                raise Damaged(f"the entry {short_repr(entry.name)} of the zip file overlaps with what follows it")
            ends[entry.name] = end
            end = entry.header
        return ends

    def data_offset(self, entry: Entry) -> int:
        """Return where an entry's bytes begin; raise Damaged if its own header contradicts the directory."""
        fixed = self._at(entry.header, _LOCAL.size)
        magic, _, flags, method, _, _, crc, packed, plain, name_size, extra_size = _LOCAL.unpack(fixed)
        name = short_repr(entry.name)
        if magic != b"PK\x03\x04" or self._at(entry.header + _LOCAL.size, name_size) != entry.raw_name:
            raise Damaged(f"the entry {name} isn't where the zip file's directory says")
        if method != entry.method or (flags ^ entry.flags) & _ENCRYPTED:
            raise Damaged(f"the entry {name} is packed by method {method}; the directory says {entry.method}")
        if method == STORED and entry.packed_size != entry.size:
            raise Damaged(f"the entry {name} isn't compressed and has two sizes")
        is_said = not flags & _SIZES_FOLLOW and _MAX32 not in (packed, plain)
        if is_said and (crc, packed, plain) != (entry.crc32, entry.packed_size, entry.size):
            raise Damaged(f"the entry {name} has other sizes than the zip file's directory says")
        offset: int = entry.header + _LOCAL.size + name_size + extra_size
        if offset + entry.packed_size > self._ends[entry.name]:
            raise Damaged(f"the entry {name} of the zip file overlaps with what follows it")
        return offset

    def read(self, entry: Entry, limit: int) -> bytes:
        """Return an entry's bytes, at most ``limit`` of them; raise Damaged if they aren't what was written."""
        if entry.size > limit:
            raise Damaged(f"the entry {short_repr(entry.name)} has {entry.size} bytes, more than {limit}")
        data = self._at(self.data_offset(entry), entry.packed_size)
        if entry.method == DEFLATED:
            data = self._inflate(entry, data)
        elif entry.method != STORED:
            raise Damaged(f"the entry {short_repr(entry.name)} is compressed by method {entry.method}, not deflate")
        if len(data) != entry.size or zlib.crc32(data) != entry.crc32:
            raise Damaged(f"the entry {short_repr(entry.name)} isn't what was written (checksum); copy the file again")
        return data

    def _inflate(self, entry: Entry, data: bytes) -> bytes:
        self._inflated += entry.size
        if entry.size > MAX_RATIO * max(entry.packed_size, 16) or self._inflated > MAX_INFLATED:
            raise Damaged(
                f"the entry {short_repr(entry.name)} is compressed and grows to {entry.size} bytes. torch doesn't "
                "compress; if you trust the file, unzip it and zip it again without compression (zip -0)"
            )
        try:
            machine = zlib.decompressobj(-zlib.MAX_WBITS)
            return machine.decompress(data, entry.size + 1)
        except zlib.error as error:
            raise Damaged(f"the entry {short_repr(entry.name)} can't be decompressed: {error}") from error


def _wide(extra: bytes, packed: int, plain: int, header: int) -> tuple[int, int, int]:
    """Return the sizes of an entry, taken from the 64-bit field where the directory has no room for them."""
    position = 0
    while position + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, position)
        if kind == 1:
            field = extra[position + 4 : position + 4 + size]
            wide = [int.from_bytes(field[at : at + 8], "little") for at in range(0, len(field) - 7, 8)]
            values = []
            for narrow in (plain, packed, header):
                if narrow == _MAX32 and not wide:
                    raise Damaged("a 64-bit size in the zip file's directory is missing")
                values.append(wide.pop(0) if narrow == _MAX32 else narrow)
            plain, packed, header = values
            break
        position += 4 + size
    return packed, plain, header


def _checked_name(raw: bytes, flags: int) -> str:
    try:
        name = raw.decode("utf-8" if flags & _UTF8 else "cp437")
    except UnicodeDecodeError as error:
        raise Damaged("the zip file has an entry whose name isn't UTF-8") from error
    if flags & _ENCRYPTED:
        raise Damaged(f"the entry {short_repr(name)} of the zip file is encrypted; decrypt it first")
    parts = name.replace("\\", "/").split("/")
    if not parts[0] or parts[0].endswith(":") or ".." in parts or "\0" in name:
        raise Damaged(f"the zip file has an entry called {short_repr(name)}, which leads out of its folder")
    return name
