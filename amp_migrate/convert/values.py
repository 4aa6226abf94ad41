"""Values of recorded tensors: single numbers, and the few questions that a layout asks about many.

Nothing here needs torch. Reading is in pieces, so that memory stays small whatever the size of a tensor.
"""

from __future__ import annotations

import struct
from typing import Any, Iterator

from .errors import CannotConvert
from .records import FileRange, Inline, Storage, Tensor

#: dtype → format of one element for ``struct``; bfloat16 is the upper half of a float32
_FORMATS = {
    "float64": "d",
    "float32": "f",
    "float16": "e",
    "bfloat16": "H",
    "int64": "q",
    "int32": "i",
    "int16": "h",
    "int8": "b",
    "uint8": "B",
    "bool": "?",
}
FLOATS = ("float64", "float32", "float16", "bfloat16")
HALVES = ("float16", "bfloat16")
_PIECE = 1 << 22


def read_bytes(storage: Storage, start: int, length: int) -> bytes:
    """``length`` bytes of a storage from byte ``start`` on, as they are stored.

    Raises:
        CannotConvert: if the storage ends before.
    """
    source = storage.source
    if isinstance(source, Inline):
        data = source.data[start : start + length]
    elif isinstance(source, FileRange):
        length = max(0, min(length, source.length - start))
        with open(source.path, "rb") as file:
            source.check(file)
            file.seek(source.offset + start)
            data = file.read(length)
    else:
        data = source.read(start, length)
    if len(data) < length or length < 0:
        raise CannotConvert(f"a storage of {storage.numel} {storage.dtype} has too few bytes")
    return bytes(data)


def element_size(dtype: str) -> int:
    """Bytes of one element.

    Raises:
        CannotConvert: for a dtype whose values no layout reads (complex, quantized).
    """
    if dtype not in _FORMATS:
        raise CannotConvert(f"can't read values of dtype {dtype}")
    return struct.calcsize("<" + _FORMATS[dtype])


def half_of(weight: Tensor) -> str:
    """The half type that a weight is, or was before it was saved in float32."""
    return "bfloat16" if weight.dtype == "bfloat16" else "float16"


def number(value: Any) -> float | int | bool:
    """A number: itself, or the only element of a recorded tensor.

    Raises:
        CannotConvert: for anything else.
    """
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Tensor) and value.numel == 1:
        found: float = first_numbers(value, 1)[0]
        return found
    if hasattr(value, "item"):
        return number(value.item())
    raise CannotConvert(f"expected a number, found {value!r}")


def first_numbers(tensor: Tensor, count: int) -> list[Any]:
    """Up to ``count`` elements, in the order in which they lie (a dense tensor's first by index if contiguous)."""
    size = element_size(tensor.dtype)
    count = min(count, tensor.numel)
    data = read_bytes(tensor.storage, tensor.offset * size, count * size)
    return _decoded(data, tensor.dtype, tensor.storage.big_endian)


def is_zero(tensor: Tensor) -> bool:
    """Whether every element's bits are zero."""
    return all(piece.count(0) == len(piece) for piece in _pieces(tensor))


def fits_half(numbers: list[float]) -> bool:
    """Whether every number is one of float16's."""
    form = f"<{len(numbers)}e"
    try:
        rounded = struct.unpack(form, struct.pack(form, *numbers))
    except OverflowError:
        return False
    return all(a == b or a != a for a, b in zip(numbers, rounded))


def only_halves(tensor: Tensor, limit: int | None = None) -> bool:
    """Whether a float32 tensor's elements, or ``limit`` of them, are all numbers of float16."""
    if limit is not None:
        return fits_half(first_numbers(tensor, limit))
    return all(fits_half(_decoded(piece, tensor.dtype, tensor.storage.big_endian)) for piece in _pieces(tensor))


def _pieces(tensor: Tensor) -> Iterator[bytes]:
    """The bytes of a tensor; of a view with gaps, also those between."""
    size = element_size(tensor.dtype)
    span = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride)) if tensor.numel else 0
    start, left = tensor.offset * size, span * size
    while left > 0:
        piece = read_bytes(tensor.storage, start, min(left, _PIECE))
        yield piece
        start, left = start + len(piece), left - len(piece)


def _decoded(data: bytes, dtype: str, big_endian: bool) -> list[Any]:
    order = ">" if big_endian else "<"
    form = _FORMATS[dtype]
    found = list(struct.unpack(f"{order}{len(data) // element_size(dtype)}{form}", data))
    if dtype == "bfloat16":
        return list(struct.unpack(f"<{len(found)}f", struct.pack(f"<{len(found)}I", *(bits << 16 for bits in found))))
    return found
