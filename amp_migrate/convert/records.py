"""A checkpoint as plain data: what a file holds, without torch, and without the bytes of its tensors.

Opening a file gives a tree of ordinary Python values (dict, OrderedDict, list, tuple, set, numbers, str, bytes, None),
and of the records below for what only torch, or another package, could build. Layouts map such a tree to another one.
Writing a tree copies the bytes of each storage from where they are. So a conversion costs what a copy costs, nothing in
a file is executed, and everything that no layout touches comes out as it went in.

Identity carries meaning, as it does in pickle: one ``Storage`` in two tensors is a shared storage, one ``Tensor`` (or
one list) at two places is one object. Records therefore compare by identity (``eq=False``).
"""

from __future__ import annotations

import dataclasses
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterator, Protocol, Tuple

from .errors import CannotConvert, Damaged

#: how much of a storage is in memory at a time; copying is slower with more, which the processor cannot keep at hand
CHUNK = 1 << 20


class Source(Protocol):
    """Where the bytes of a storage come from. ``crc32`` is None where nobody has computed it yet."""

    @property
    def length(self) -> int: ...

    @property
    def crc32(self) -> int | None: ...

    def read(self, start: int, length: int) -> bytes:
        """Return ``length`` bytes from byte ``start`` on, fewer where the source ends."""
        ...

    def chunks(self) -> Iterator[bytes]:
        """Yield all bytes, in parts that fit into memory."""
        ...


#: device, inode, size and time of the last change: another file under the same name has another one
Stamp = Tuple[int, int, int, int]


def stamp_of(file: Any) -> Stamp | None:
    """Return which file is open, and as of when; None for what isn't on a disk."""
    try:
        found = os.fstat(file.fileno())
    except (OSError, AttributeError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(frozen=True)
class FileRange:
    """Bytes in a file, as they are on the disk: ``length`` bytes from ``offset``.

    ``crc32`` is known when a zip file's directory says it, so that copying needn't compute it again. ``stamp`` is that
    of the file in which the range was found.
    """

    path: Path
    offset: int
    length: int
    crc32: int | None = None
    stamp: Stamp | None = None

    def check(self, file: Any) -> None:
        """Raise Damaged if ``file``, which is open now, isn't the one in which the range was found."""
        if self.stamp is not None and stamp_of(file) != self.stamp:
            raise Damaged(f"{self.path}: it was changed meanwhile, run this again")

    def read(self, start: int, length: int) -> bytes:
        length = max(0, min(length, self.length - start))
        with open(self.path, "rb") as file:
            self.check(file)
            file.seek(self.offset + start)
            return file.read(length)

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes; raise Damaged if the file has changed in the meantime."""
        left = self.length
        with open(self.path, "rb") as file:
            self.check(file)
            file.seek(self.offset)
            while left:
                data = file.read(min(left, CHUNK))
                if not data:
                    raise Damaged(
                        f"{self.path}: {left} bytes are missing; somebody else has changed it, run this again"
                    )
                left -= len(data)
                yield data


@dataclass(frozen=True)
class Inline:
    """Bytes made by the conversion (a new ``step``), little endian."""

    data: bytes = field(repr=False)

    @property
    def length(self) -> int:
        return len(self.data)

    @property
    def crc32(self) -> int:
        return zlib.crc32(self.data)

    def read(self, start: int, length: int) -> bytes:
        return self.data[start : start + length]

    def chunks(self) -> Iterator[bytes]:
        yield self.data


@dataclass(frozen=True, eq=False)
class Storage:
    """A storage: ``numel`` elements of ``dtype`` ("float32", as torch spells it), saved from ``location``.

    ``dtype`` is "untyped" for a ``torch.UntypedStorage``, whose elements are bytes. ``source`` is a ``FileRange``, an
    ``Inline``, or what else is a ``Source`` (a live torch storage, see ``live.py``).
    ``big_endian``: the bytes were written on a big-endian machine.
    """

    dtype: str
    numel: int
    location: str
    source: Source = field(repr=False)
    big_endian: bool = False


@dataclass(frozen=True, eq=False)
class Tensor:
    """A strided tensor: a view of a storage. Offset and strides count elements, not bytes.

    ``parameter``: it was an ``nn.Parameter``. ``extra`` holds what torch saves beside these (metadata such as the
    conjugate bit), carried as it is.
    """

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool = False
    parameter: bool = False
    extra: Any = None
    #: dtype of the view where it isn't the storage's (``torch._utils._rebuild_tensor_v3``)
    view_dtype: str | None = None

    @property
    def dtype(self) -> str:
        return self.view_dtype or self.storage.dtype

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def is_contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride)):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    def detached(self) -> Tensor:
        """The same values as a plain tensor, as they stand in a model's state dict."""
        if not (self.requires_grad or self.parameter):
            return self
        return dataclasses.replace(self, requires_grad=False, parameter=False)

    def part(self, start: int, shape: tuple[int, ...]) -> Tensor:
        """Elements from ``start`` on of a contiguous tensor, as a contiguous ``shape`` that shares storage."""
        view = dataclasses.replace(self, shape=shape, stride=contiguous_stride(shape), offset=self.offset + start)
        if not self.is_contiguous or start < 0 or start + view.numel > self.numel:
            raise CannotConvert(f"can't take {shape} from element {start} on of a tensor of shape {self.shape}")
        return view


@dataclass(frozen=True)
class Global:
    """A class or function that the file names, standing by itself: ``module.name``."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, eq=False)
class Call:
    """The value of ``function(*args)``, carried as it is: a torch function that the table allows.

    For what torch builds by itself and no layout looks into: ``torch.Size``, ``torch.device``, sparse and
    quantized tensors (``torch._utils._rebuild_sparse_tensor`` …). ``torch.load(weights_only=True)`` takes ``function``.
    """

    function: Global
    args: tuple[Any, ...]


@dataclass(eq=False)
class PickledObject:
    """An instance of a class that isn't built: ``cls(*args)``, then what the pickle set on it.

    ``state`` is what ``__setstate__`` would have got (for most classes the ``__dict__``). ``items`` are what was
    appended or set by key. Not frozen, for a pickle may refer to an object inside its own state.
    """

    cls: Global
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None
    state: Any = None
    list_items: list[Any] = field(default_factory=list)
    dict_items: dict[Any, Any] = field(default_factory=dict)

    @property
    def attributes(self) -> dict[str, Any]:
        """The instance's attributes, as far as the state tells."""
        state = self.state[0] if isinstance(self.state, tuple) and self.state else self.state
        return state if isinstance(state, dict) else {}


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a contiguous tensor (torch counts a size of 0 as 1 here)."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
