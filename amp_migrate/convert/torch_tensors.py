"""Recorded tensors as torch's, and torch's as records: on a CPU, on any torch from 1.6 on.

Bytes are read straight into the memory of the new tensor. A live tensor's record points to it; nothing is copied.
"""

from __future__ import annotations

import ctypes
import warnings
from dataclasses import dataclass, field
from typing import Any, Iterator

import torch

from .dtypes import UNTYPED, byte_size, storage_class
from .errors import CannotConvert
from .records import CHUNK, FileRange, Storage, Tensor

#: dtypes of which torch makes no plain tensors
_QUANTIZED = ("qint8", "quint8", "qint32", "quint4x2", "quint2x4")


@dataclass(frozen=True, eq=False)
class LiveStorage:
    """The bytes of a live tensor's storage. ``tensor`` is any tensor of it; ``length`` counts bytes."""

    tensor: torch.Tensor
    length: int
    crc32: int | None = None

    def read(self, start: int, length: int) -> bytes:
        """``length`` bytes from byte ``start`` on."""
        size = self.tensor.element_size()
        first, last = start // size, -(-(start + length) // size)
        part = self.tensor.detach().as_strided((last - first,), (1,), first).cpu().contiguous()
        return _memory(part)[start - first * size : start - first * size + length].tobytes()

    def chunks(self) -> Iterator[bytes]:
        for start in range(0, self.length, CHUNK):
            yield self.read(start, min(CHUNK, self.length - start))


def recorded_storage(tensor: Any) -> tuple[Any, Storage]:
    """Return what identifies a tensor's storage, and a record of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TypedStorage is deprecated, and all there is before torch 2.0
        typed = not hasattr(tensor, "untyped_storage")
        storage = tensor.storage() if typed else tensor.untyped_storage()
        count = storage.size() if typed else storage.nbytes() // tensor.element_size()
        identity: Any = (storage.data_ptr(), str(tensor.device)) if count else id(tensor)
    dtype = dtype_name(tensor.dtype)
    source = LiveStorage(tensor, count * tensor.element_size())
    return identity, Storage(dtype, count, str(tensor.device), source)


def recorded(tensor: torch.Tensor, storage: Storage) -> Tensor:
    """The record of a live tensor with the record of its storage."""
    dtype = dtype_name(tensor.dtype)
    return Tensor(
        storage,
        int(tensor.storage_offset()),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.requires_grad,
        isinstance(tensor, torch.nn.Parameter),
        view_dtype=None if dtype == storage.dtype else dtype,
    )


def is_strided(value: Any) -> bool:
    """Whether a value is a tensor that a record can describe: torch's own class, dense, with memory."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
        return False
    lazy = any(getattr(value, name, bool)() for name in ("is_conj", "is_neg"))
    return not (value.is_quantized or value.device.type in ("meta", "xla") or lazy)


@dataclass
class Loading:
    """Tensors made from records. One storage stays one storage."""

    storages: dict[int, Any] = field(default_factory=dict)

    def tensor(self, record: Tensor) -> torch.Tensor:
        """Build a tensor.

        Raises:
            CannotConvert: for a dtype that this torch doesn't have, and for a view beyond its storage.
        """
        made = self._view(record)
        if record.parameter:
            return torch.nn.Parameter(made, requires_grad=record.requires_grad)
        if record.extra and hasattr(torch._utils, "set_tensor_metadata"):
            utils: Any = torch._utils
            utils.set_tensor_metadata(made, record.extra)
        return made.requires_grad_(record.requires_grad) if record.requires_grad else made

    def _view(self, record: Tensor) -> torch.Tensor:
        source = record.storage.source
        base = source.tensor.detach() if isinstance(source, LiveStorage) else self._flat(record.storage)
        dtype = dtype_of(record.dtype)
        if base.dtype is not dtype:
            base = _viewed(base, dtype)
        try:
            return base.as_strided(record.shape, record.stride, record.offset)
        except RuntimeError as error:
            raise CannotConvert(f"a tensor of shape {record.shape} reaches beyond its storage: {error}") from error

    def _flat(self, storage: Storage) -> torch.Tensor:
        """The whole storage as a tensor."""
        if id(storage) not in self.storages:
            self.storages[id(storage)] = (storage, filled(storage))
        flat: torch.Tensor = self.storages[id(storage)][1]
        return flat

    def storage(self, storage: Storage) -> Any:
        """A storage that stands by itself, as torch's object."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            flat: Any = self._flat(storage)
            if storage.dtype == UNTYPED:
                return flat.untyped_storage() if hasattr(flat, "untyped_storage") else flat.storage()
            if storage.dtype not in _QUANTIZED:
                return flat.storage()
            if hasattr(torch, "UntypedStorage") and hasattr(flat, "untyped_storage"):
                typed: Any = torch.storage.TypedStorage
                return typed(wrap_storage=flat.untyped_storage(), dtype=dtype_of(storage.dtype), _internal=True)
        return _old_quantized(storage, flat)


def filled(storage: Storage) -> torch.Tensor:
    """A new tensor with a storage's bytes."""
    plain = storage.dtype not in _QUANTIZED and storage.dtype != UNTYPED
    size = byte_size(storage)
    made = torch.empty(storage.numel if plain else size, dtype=dtype_of(storage.dtype) if plain else torch.uint8)
    if not size:
        return made
    target = _memory(made)
    if isinstance(storage.source, FileRange):
        _read_into(target, storage.source)
    else:
        start = 0
        for data in storage.source.chunks():
            target[start : start + len(data)] = data
            start += len(data)
    if storage.big_endian and plain:
        _swap(target, made.element_size() // (2 if made.is_complex() else 1))
    return made


def _read_into(target: memoryview, source: FileRange) -> None:
    with open(source.path, "rb", buffering=0) as file:
        source.check(file)
        file.seek(source.offset)
        start = 0
        while start < len(target):
            count = file.readinto(target[start:])
            if not count:
                raise CannotConvert(f"{source.path} is shorter than it was when it was opened")
            start += count


def _memory(tensor: torch.Tensor) -> memoryview:
    """A contiguous CPU tensor's bytes. Valid as long as the tensor lives."""
    size = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B") if size else memoryview(b"")


def _swap(target: memoryview, size: int) -> None:
    for place in range(size // 2):
        first, last = bytes(target[place::size]), bytes(target[size - 1 - place :: size])
        target[place::size], target[size - 1 - place :: size] = last, first


def _viewed(base: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    try:
        return base.view(dtype)
    except (RuntimeError, TypeError) as error:
        raise CannotConvert(f"this torch can't view {base.dtype} as {dtype}: use a newer one") from error


def _old_quantized(storage: Storage, flat: torch.Tensor) -> Any:
    cls = storage_class(storage.dtype)
    made = getattr(torch, cls.name)(storage.numel) if cls is not None else None
    if made is None:
        raise CannotConvert(f"this torch has no {storage.dtype}: use a newer one")
    ctypes.memmove(made.data_ptr(), flat.data_ptr(), flat.numel())
    return made


def dtype_name(dtype: torch.dtype) -> str:
    """ "float32" for ``torch.float32``."""
    return str(dtype).split(".")[-1]


def dtype_of(name: str) -> torch.dtype:
    """torch's dtype of that name.

    Raises:
        CannotConvert: if this torch has none.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CannotConvert(f"this torch ({torch.__version__}) has no dtype {name}: use a newer one")
    return dtype
