"""torch's legacy format (default until torch 1.5): pickles one after the other, then the bytes of the storages.

A magic number, a version, facts about the machine, the object, the keys of its storages; then for each key the number
of its elements (8 bytes) and their bytes, always little endian. Plain pickles, which begin alike, are told apart here.

Source: torch/serialization.py (``_legacy_save``, ``_legacy_load``), torch/csrc/serialization.cpp.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, BinaryIO, Iterator, Mapping

from ..dtypes import byte_size
from ..errors import Damaged, Unsafe
from ..records import FileRange, Global, Inline, Source, Storage, stamp_of
from ..tree import short_repr
from .limits import Limits
from .opcodes import OPCODES
from .opened import Contents
from .pickle_machine import Machine
from .storages import kind_of, storage_id
from .stream import Stream
from .torch_objects import StorageView

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
PROTOCOL_VERSION = 1001


class _Unread:
    """Stands for a storage's bytes until the pickles are read and it is known where they lie."""

    length = 0
    crc32 = None

    def read(self, start: int, length: int) -> bytes:
        raise Damaged("a tensor's bytes are needed before it is known where they lie")

    def chunks(self) -> Iterator[bytes]:
        yield self.read(0, 0)


class _Legacy:
    """The storages that a legacy file's pickle has asked for so far."""

    def __init__(self) -> None:
        self.storages: dict[str, Storage] = {}
        self.views: dict[str, StorageView] = {}

    def persistent_load(self, saved: Any) -> Any:
        kind = kind_of(saved)
        if kind == "module":  # ("module", class, source file, source text): a class whose source is saved with it
            if len(saved) < 2 or not isinstance(saved[1], Global):
                raise Damaged("the pickle has the source text of something that is no class")
            return saved[1]
        if kind == "storage" and len(saved) == 6:
            return self._storage(saved[:5], saved[5])
        raise Unsafe(f"the pickle asks its reader for a {short_repr(kind)}, which isn't a storage")

    def _storage(self, saved: tuple[Any, ...], view: Any) -> Storage | StorageView:
        wanted = storage_id(saved)
        root = self.storages.get(wanted.key)
        if root is None:
            root = Storage(wanted.dtype, wanted.numel, wanted.location, _Unread())
            self.storages[wanted.key] = root
        return root if view is None else self._view(root, view)

    def _view(self, root: Storage, view: Any) -> StorageView:
        if not isinstance(view, tuple) or len(view) != 3 or not isinstance(view[0], str):
            raise Damaged(f"a part of a storage is described by {short_repr(view)}")
        key, offset, numel = view
        if not all(type(number) is int and number >= 0 for number in (offset, numel)) or offset + numel > root.numel:
            raise Damaged(f"a part of a storage ends after its {root.numel} elements")
        return self.views.setdefault(key, StorageView(root, offset, numel))


def _pickle(stream: Stream, limits: Limits) -> Any:
    return Machine(stream, limits).run(OPCODES)


def _find_storages(stream: Stream, keys: Any, storages: Mapping[str, Storage], make_source: Any) -> None:
    """Give each storage its source: they follow each other in the order of ``keys``."""
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise Damaged("the list of the storages' keys is broken")
    if len(set(keys)) != len(keys) or set(keys) != set(storages):
        raise Damaged(f"the file lists {len(keys)} storages, and its tensors lie in {len(storages)} others")
    for key in keys:
        storage = storages[key]
        numel = int.from_bytes(stream.read(8), "little", signed=True)
        if numel != storage.numel:
            raise Damaged(f"storage {short_repr(key)} has {numel} elements; its tensors say {storage.numel}")
        size = byte_size(storage)
        if size > stream.end - stream.position:
            left = stream.end - stream.position
            raise Damaged(f"storage {short_repr(key)} has {size} bytes, and {left} are left: the file was cut off")
        # the one place that changes a record: tensors refer to it already, and nobody else has seen it
        object.__setattr__(storage, "source", make_source(stream, size))


def _open_rest(stream: Stream, limits: Limits, make_source: Any) -> Contents:
    """Return the object of a legacy file whose magic number has been read."""
    version = _pickle(stream, limits)
    if version != PROTOCOL_VERSION:
        raise Damaged(f"the file has version {short_repr(version)} of torch's legacy format; there is only 1001")
    _pickle(stream, limits)  # facts about the machine; the bytes are little endian whatever it was
    legacy = _Legacy()
    machine = Machine(stream, limits, legacy.persistent_load)
    tree = machine.run(OPCODES)
    keys = _pickle(stream, limits)
    _find_storages(stream, keys, legacy.storages, make_source)
    has_strangers = machine.has_strangers or bool(legacy.views)
    return Contents(
        tree,
        "legacy",
        {"pickle protocol": machine.protocol},
        has_strangers=has_strangers,
        strangers=frozenset(limits.strangers),
    )


def load_nested(data: bytes, limits: Limits) -> Any:
    """Return the storage that a whole legacy file in ``data`` holds."""
    stream = Stream(io.BytesIO(data), len(data), "a storage inside of the pickle")
    if _pickle(stream, limits) != MAGIC_NUMBER:
        raise Damaged("a storage inside of the pickle isn't in torch's legacy format")
    return _open_rest(stream, limits, lambda stream, size: Inline(stream.read(size))).tree


def open_pickles(file: BinaryIO, path: Path, length: int) -> Contents:
    """Return what a legacy file or a plain pickle holds.

    Raises:
        Damaged: it is neither, or a broken one.
        Unsafe: see ``Machine.run``.
    """
    stream = Stream(file, length, "the file")
    stamp = stamp_of(file)

    def file_range(stream: Stream, size: int) -> Source:
        found = FileRange(path, stream.position, size, stamp=stamp)
        stream.skip(size)
        return found

    limits = Limits()
    machine = Machine(stream, limits, load_nested=load_nested)
    first = machine.run(OPCODES)
    if type(first) is int and first == MAGIC_NUMBER:
        contents = _open_rest(stream, limits, file_range)
    else:
        contents = Contents(
            first,
            "pickle",
            {"pickle protocol": machine.protocol},
            has_strangers=machine.has_strangers,
            strangers=frozenset(limits.strangers),
        )
    if not stream.at_end:
        left = length - stream.position
        raise Damaged(f"the file goes on for {left} bytes after its end: it holds several objects, or is no checkpoint")
    return contents
