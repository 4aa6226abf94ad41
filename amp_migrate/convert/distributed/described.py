"""A folder's contents as a tree of records, to look at: without torch, and without the values of divided tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator

from ..errors import CannotConvert
from ..records import Storage, Tensor, contiguous_stride
from .entries import Objects, open_tensor
from .metadata import SavedTensor, read_metadata
from .nesting import nested


@dataclass(frozen=True)
class _Divided:
    """Stands for the bytes of a tensor that lie in several chunks."""

    length: int
    crc32: int | None = None

    def read(self, start: int, length: int) -> bytes:
        raise CannotConvert("a tensor's values are asked for, and they lie in several chunks; convert with --dry-run")

    def chunks(self) -> Iterator[bytes]:
        yield self.read(0, self.length)


def tree_of_folder(folder: Path, objects: Objects) -> Any:
    """Return the nested state of a folder. ``objects`` has to stay open as long as it is used.

    Raises:
        as ``read_metadata`` and ``Objects.open``.
    """
    saved = read_metadata(folder)
    flat: dict[str, Any] = {name: objects.open(entry.file, name) for name, entry in saved.objects.items()}
    flat.update((name, _record(entry, name)) for name, entry in saved.tensors.items())
    return nested({name: flat[name] for name in saved.entries}, saved.ways)


def _record(entry: SavedTensor, name: str) -> Tensor:
    if len(entry.chunks) == 1:
        return open_tensor(entry.chunks[0].file, name)
    count = 1
    for size in entry.shape:
        count *= size
    source = _Divided(sum(chunk.file.length for chunk in entry.chunks))
    storage = Storage(entry.dtype, count, "cpu", source)
    return Tensor(storage, 0, entry.shape, contiguous_stride(entry.shape))
