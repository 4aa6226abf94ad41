"""torch's zip format (default since torch 1.6): a pickle, and beside it a file for the bytes of each storage.

Source: torch/serialization.py (``_save``, ``_load``), caffe2/serialize/inline_container.cc.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import Damaged
from ..records import FileRange, Inline, Storage, stamp_of
from ..tree import short_repr
from .limits import MAX_MEMORY, Limits
from .opcodes import OPCODES
from .opened import Contents
from .pickle_machine import Machine
from .storages import storage_id
from .stream import Stream
from .zip_directory import MAX_INFLATED, STORED, ZipDirectory

_PICKLE = "data.pkl"
_SMALL = 1 << 12

#: entries that tell what another kind of zip file is
_OTHER_KINDS = (
    ("constants.pkl", "a TorchScript archive: open it with torch.jit.load and torch.save its state_dict()"),
    (
        ".data/extern_modules",
        "a torch.package archive: open it with torch.package.PackageImporter",
    ),
)


class _TorchZip:
    """A torch zip: its directory, and the storages that the pickle has asked for so far."""

    def __init__(self, file: BinaryIO, path: Path, length: int) -> None:
        self.path = path
        self.stamp = stamp_of(file)
        self.directory = ZipDirectory(file, length)
        self.root = self._find_root()
        self.storages: dict[str, Storage] = {}
        self.byteorder = (self.text("byteorder") or "little").strip()
        if self.byteorder not in ("little", "big"):
            raise Damaged(f"the file's byte order is {short_repr(self.byteorder)}, neither little nor big")

    def _find_root(self) -> str:
        names = self.directory.entries
        roots = [name[: -len(_PICKLE)] for name in names if name.endswith(f"/{_PICKLE}") and name.count("/") == 1]
        for ending, what in _OTHER_KINDS:
            if any(name.split("/", 1)[-1] == ending or name == ending for name in names):
                raise Damaged(f"this is {what}")
        if len(roots) != 1:
            some = ", ".join(short_repr(name) for name in list(names)[:4])
            found = "several" if roots else "no"
            raise Damaged(f"a zip file with {found} {_PICKLE}, so none of torch.save's; it holds {some or 'nothing'}")
        return roots[0]

    def text(self, name: str) -> str | None:
        """Return what a small entry says, or None if there is none."""
        entry = self.directory.entries.get(self.root + name)
        return None if entry is None else self.directory.read(entry, _SMALL).decode("latin1")

    def pickle(self) -> tuple[Any, Machine]:
        data = self.directory.read(self.directory.entries[self.root + _PICKLE], MAX_MEMORY)
        stream = Stream(io.BytesIO(data), len(data), _PICKLE)
        machine = Machine(stream, Limits(), self.storage)
        tree = machine.run(OPCODES)
        if not stream.at_end:
            raise Damaged(f"{_PICKLE} goes on after its end, at byte {stream.position}")
        return tree, machine

    def storage(self, saved: Any) -> Storage:
        """Return the record for a persistent id. The first one decides the dtype, as in ``torch.load``."""
        wanted = storage_id(saved)
        known = self.storages.get(wanted.key)
        if known is not None:
            return known
        source = self._source(wanted.key, wanted.byte_size)
        big = self.byteorder == "big"
        storage = Storage(wanted.dtype, wanted.numel, wanted.location, source, big)
        self.storages[wanted.key] = storage
        return storage

    def _source(self, key: str, size: int) -> FileRange | Inline:
        name = f"data/{key}"
        entry = self.directory.entries.get(self.root + name)
        if entry is None:
            raise Damaged(f"the bytes of storage {short_repr(key)} are missing: the file has no {short_repr(name)}")
        if entry.size < size:
            raise Damaged(f"{short_repr(name)} has {entry.size} bytes, and its tensors need {size}")
        if entry.method != STORED:
            return Inline(self.directory.read(entry, MAX_INFLATED)[:size])
        offset = self.directory.data_offset(entry)
        return FileRange(self.path, offset, size, entry.crc32 if entry.size == size else None, self.stamp)


def open_zip(file: BinaryIO, path: Path, length: int) -> Contents:
    """Return what a zip file of torch's holds.

    Raises:
        Damaged: it is another kind of zip file, or a broken one.
        Unsafe: see ``Machine.run``.
    """
    opened = _TorchZip(file, path, length)
    tree, machine = opened.pickle()
    writer: dict[str, Any] = {"pickle protocol": machine.protocol}
    for name in ("version", ".format_version", ".storage_alignment"):
        text = opened.text(name)
        if text is not None:
            writer[name.lstrip(".").replace("_", " ")] = text.strip()
    strangers = frozenset(machine.limits.strangers)
    return Contents(tree, "zip", writer, opened.byteorder, machine.has_strangers, strangers)
