"""What a folder's ``.metadata`` says, read without executing it: names, shapes, and where in which file the bytes are.

``.metadata`` is a pickle of classes of torch's. It goes through the inert machine, which builds none of them. What
another class or function is named in is refused, and every number is compared with what is on the disk.

Source: torch/distributed/checkpoint/metadata.py, filesystem.py (``_StorageInfo``) of torch 2.0 to 2.15.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, Sequence, Tuple, Union

from ..dtypes import ITEM_SIZES, named_dtype
from ..errors import CannotConvert, Damaged, Unsafe
from ..opening import MAX_DEPTH, open_checkpoint
from ..records import Call, FileRange, Global, PickledObject
from ..tree import short_repr
from .recognise import METADATA

Sizes = Tuple[int, ...]
Way = Tuple[Union[str, int], ...]

_DCP = "torch.distributed.checkpoint"
_OLD_DCP = "torch.distributed._shard.checkpoint"  # until torch 2.0
_SHARD = "torch.distributed._shard.sharded_tensor.metadata"  # TensorProperties until torch 2.2
_CLASSES = (
    *("Metadata", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING"),
    *("TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties"),
)
#: every class that DCP's own writers put into a ``.metadata``: plain dataclasses, and an enumeration
_KNOWN = frozenset(
    [
        *(f"{package}.metadata.{name}" for package in (_DCP, _OLD_DCP) for name in _CLASSES),
        *(
            f"{package}.filesystem.{name}"
            for package in (_DCP, _OLD_DCP)
            for name in ("_StorageInfo", "_StoragePrefix")
        ),
        *(f"{_SHARD}.{name}" for name in ("TensorProperties", "MEM_FORMAT_ENCODING")),
    ]
)


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor: where it begins, how big it is, and the file of torch.save's that holds it."""

    offsets: Sizes
    sizes: Sizes
    file: FileRange


@dataclass(frozen=True)
class SavedTensor:
    dtype: str
    shape: Sizes
    requires_grad: bool
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True)
class SavedObject:
    """Anything that isn't a tensor: a file of torch.save's among the others'."""

    file: FileRange


@dataclass(frozen=True)
class Saved:
    """A folder's contents. ``ways`` are the keys that lead to each entry in the nested state, by its flat name."""

    folder: Path
    entries: Mapping[str, SavedTensor | SavedObject]
    ways: Mapping[str, Way]

    @property
    def tensors(self) -> Mapping[str, SavedTensor]:
        return {name: entry for name, entry in self.entries.items() if isinstance(entry, SavedTensor)}

    @property
    def objects(self) -> Mapping[str, SavedObject]:
        return {name: entry for name, entry in self.entries.items() if isinstance(entry, SavedObject)}


def read_metadata(folder: Path) -> Saved:
    """Return what ``folder`` holds.

    Raises:
        Damaged: there is no ``.metadata``, or it isn't true: files that are missing or too short, or elsewhere.
        Unsafe: it names what no ``torch.distributed.checkpoint`` puts there.
        CannotConvert: it was written with an extension of DCP's, or holds tensors that aren't dense.
        OSError: it can't be read.
    """
    path = folder / METADATA
    if not path.is_file():
        raise Damaged(f"{folder} has no {METADATA}: saving it stopped early, or the file wasn't copied (it is hidden)")
    opened = open_checkpoint(path)
    for name, places in opened.foreign.items():
        if name not in _KNOWN:
            raise Unsafe(
                f"{path} names {name} at {', '.join(each or 'the whole file' for each in places[:3])}. "
                "torch.distributed.checkpoint never writes that; it isn't opened. Save it anew where it came from"
            )
    try:
        return _Reading(folder, opened.root).saved()
    except CannotConvert as error:
        raise type(error)(f"{path}: {error}") from error


class _Reading:
    def __init__(self, folder: Path, root: Any) -> None:
        self._folder = folder
        self._root = _attributes(root, "Metadata")
        self._sizes: dict[str, int] = {}
        self._used: dict[str, int] = {}

    def saved(self) -> Saved:
        described = _mapping(self._root.get("state_dict_metadata"), "state_dict_metadata")
        ranges = self._ranges()
        entries = {_text(name): self._entry(name, value, ranges) for name, value in described.items()}
        return Saved(self._folder, entries, self._ways(entries))

    def _entry(self, name: str, value: Any, ranges: Mapping[Any, FileRange]) -> SavedTensor | SavedObject:
        if _class(value) == "BytesStorageMetadata":
            return SavedObject(_of(ranges, name, None))
        found = _attributes(value, "TensorStorageMetadata")
        dtype, requires_grad = _properties(found.get("properties"), name)
        shape = _size(found.get("size"))
        chunks = tuple(self._chunk(name, each, ranges) for each in _list(found.get("chunks"), "chunks"))
        if sum(_count(chunk.sizes) for chunk in chunks) != _count(shape):
            raise Damaged(f"the parts of {short_repr(name)} don't fill a tensor of shape {shape}")
        for chunk in chunks:
            _check_inside(name, shape, chunk, ITEM_SIZES[dtype])
        return SavedTensor(dtype, shape, requires_grad, chunks)

    def _chunk(self, name: str, value: Any, ranges: Mapping[Any, FileRange]) -> Chunk:
        found = _attributes(value, "ChunkStorageMetadata")
        offsets = _size(found.get("offsets"))
        return Chunk(offsets, _size(found.get("sizes")), _of(ranges, name, offsets))

    def _ranges(self) -> Mapping[tuple[str, Sizes | None], FileRange]:
        """Where the bytes of each entry are, by its name and, of a tensor, the offsets of the chunk."""
        ranges: dict[tuple[str, Sizes | None], FileRange] = {}
        for key, value in _mapping(self._root.get("storage_data"), "storage_data").items():
            index = _attributes(key, "MetadataIndex")
            offset = index.get("offset")
            name = _text(index.get("fqn"))
            ranges[name, None if offset is None else _size(offset)] = self._range(name, value)
        return ranges

    def _range(self, name: str, value: Any) -> FileRange:
        info = _attributes(value, "_StorageInfo")
        if info.get("transform_descriptors"):
            raise CannotConvert(
                f"{short_repr(name)} was written with an extension ({short_repr(info['transform_descriptors'])}). Load "
                "the folder where the extension is, and save it without"
            )
        file = _file_name(info.get("relative_path"))
        start, length = _number(info.get("offset")), _number(info.get("length"))
        size = self._size_of(file)
        self._used[file] = self._used.get(file, 0) + length
        if start + length > size or self._used[file] > size:
            raise Damaged(f"{file} has {size} bytes, and {short_repr(name)} needs more: copy the folder again")
        return FileRange(self._folder / file, start, length)

    def _size_of(self, file: str) -> int:
        if file not in self._sizes:
            path = self._folder / file
            if not path.is_file():
                raise Damaged(f"{file} is missing: the folder wasn't copied as a whole, or a process didn't save")
            self._sizes[file] = path.stat().st_size
        return self._sizes[file]

    def _ways(self, entries: Mapping[str, Any]) -> Mapping[str, Way]:
        planned = self._root.get("planner_data")
        ways = {} if planned is None else _mapping(planned, "planner_data")
        return {name: _way(ways[name]) if name in ways else (name,) for name in entries}


def _check_inside(name: str, shape: Sizes, chunk: Chunk, item: int) -> None:
    fits = len(chunk.offsets) == len(chunk.sizes) == len(shape)
    if not fits or any(start + size > whole for start, size, whole in zip(chunk.offsets, chunk.sizes, shape)):
        raise Damaged(f"a part of {short_repr(name)} lies outside of its shape {shape}")
    if _count(chunk.sizes) * item > chunk.file.length:
        raise Damaged(f"{short_repr(name)} needs {_count(chunk.sizes) * item} bytes, and its file has fewer")


def _properties(value: Any, name: str) -> tuple[str, bool]:
    """Return dtype and ``requires_grad``. The state is a tuple, or a dictionary."""
    if _class(value) != "TensorProperties":
        raise Damaged(f"the properties of {short_repr(name)} are {short_repr(value)}")
    state = value.state
    if isinstance(state, dict):
        state = (state.get("dtype"), state.get("layout"), state.get("requires_grad", False))
    if not isinstance(state, tuple) or len(state) < 3:
        raise Damaged(f"the properties of {short_repr(name)} are {short_repr(state)}")
    dtype = named_dtype(state[0]) if isinstance(state[0], Global) else None
    if dtype is None:
        raise Damaged(f"the dtype of {short_repr(name)} is {short_repr(state[0])}")
    if isinstance(state[1], Call) and state[1].args != ("torch.strided",):
        raise CannotConvert(f"{short_repr(name)} isn't a dense tensor ({short_repr(state[1].args[0])})")
    return dtype, state[2] is True


def _class(value: Any) -> str:
    return value.cls.name if isinstance(value, PickledObject) else type(value).__name__


def _attributes(value: Any, name: str) -> Mapping[str, Any]:
    if _class(value) != name:
        raise Damaged(f"there is a {_class(value)} where a {name} should be")
    return value.attributes  # type: ignore[no-any-return]


def _mapping(value: Any, what: str) -> Mapping[Any, Any]:
    if not isinstance(value, dict):
        raise Damaged(f"{what} is a {type(value).__name__} instead of a dictionary")
    return value


def _list(value: Any, what: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise Damaged(f"{what} are a {type(value).__name__} instead of a list")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Damaged(f"an entry is called {short_repr(value)}")
    return value


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise Damaged(f"the place of an entry is {short_repr(value)}")
    return value


def _size(value: Any) -> Sizes:
    if isinstance(value, Call) and str(value.function) == "torch.Size" and len(value.args) == 1:
        value = value.args[0]
    if not isinstance(value, (tuple, list)) or not all(type(each) is int and 0 <= each < 1 << 62 for each in value):
        raise Damaged(f"a size is {short_repr(value)}")
    return tuple(value)


def _count(sizes: Sizes) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count


def _file_name(value: Any) -> str:
    """Return the name of a data file; raise Damaged for one that leads out of the folder."""
    name = _text(value)
    if name in ("", ".", "..") or any(each in name for each in "/\\:\0"):
        raise Damaged(f"the data are said to be in {short_repr(name)}, which isn't a file in the folder")
    return name


def _way(value: Any) -> Way:
    if not isinstance(value, (tuple, list)) or not 0 < len(value) <= MAX_DEPTH:
        raise Damaged(f"the way to an entry is {short_repr(value)}")
    if not all(type(step) is str or (type(step) is int and step >= 0) for step in value):
        raise Damaged("the way to an entry has something else than keys and indices in it")
    return tuple(value)


def _of(ranges: Mapping[Any, FileRange], name: str, offsets: Sizes | None) -> FileRange:
    found = ranges.get((name, offsets))
    if found is None:
        raise Damaged(f"it doesn't say where {short_repr(name)} is")
    return found
