"""numpy's scalars and arrays in a pickle, read without numpy: numbers, tensors, or lists where torch has no dtype.

Sources: numpy/_core/src/multiarray/methods.c (``array_reduce``), descriptor.c (``arraydescr_reduce``), scalartypes.c.
"""

from __future__ import annotations

import array
import struct
import sys
from dataclasses import dataclass
from typing import Any, Mapping

from ..dtypes import ITEM_SIZES, swapped
from ..records import Call, Inline, PickledObject, Storage, Tensor, contiguous_stride
from .plain_values import NotPlain

#: numpy's dtypes that torch has had from the first version on
_SAME: Mapping[str, str] = {
    "b1": "bool",
    "i1": "int8",
    "i2": "int16",
    "i4": "int32",
    "i8": "int64",
    "u1": "uint8",
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
    "c8": "complex64",
    "c16": "complex128",
}
#: unsigned dtypes, which torch has since 2.3 only: array codes of them, and of what holds all their values
_WIDER: Mapping[str, tuple[str, str, str]] = {"u2": ("H", "i", "int32"), "u4": ("I", "q", "int64")}
#: struct's letters, for scalars and lists
_FORMATS: Mapping[str, str] = {
    **{"b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q"},
    **{"f2": "e", "f4": "f", "f8": "d"},
}
_MAX_LIST = 1_000_000


@dataclass(frozen=True)
class _Dtype:
    """``code`` is numpy's letter and number of bytes: "f4", "U12", "O"."""

    code: str
    order: str

    @property
    def item_size(self) -> int:
        return int(self.code[1:]) * (4 if self.code[0] == "U" else 1)


def _dtype(value: Any) -> _Dtype:
    if not isinstance(value, PickledObject) or str(value.cls) != "numpy.dtype" or not value.args:
        raise NotPlain
    code, state = value.args[0], value.state
    if not isinstance(code, str) or not isinstance(state, tuple) or len(state) < 8 or state[2:5] != (None, None, None):
        raise NotPlain  # a structured dtype
    order = state[1]
    is_text = code[:1] in ("U", "S") and code[1:].isdigit()
    if (code not in _FORMATS and code not in _SAME and not is_text) or order not in ("<", ">", "|", "="):
        raise NotPlain
    return _Dtype(code, order)


def _raw(value: Any) -> bytes:
    """Return the bytes of an array; Python 2's, when they happen to be UTF-8, were read as text."""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    raise NotPlain


def _little_endian(raw: bytes, dtype: _Dtype) -> bytes:
    if dtype.order != ">":
        return raw
    size = dtype.item_size // 2 if dtype.code[0] == "c" else 4 if dtype.code[0] == "U" else dtype.item_size
    if size not in (2, 4, 8):
        return raw
    return swapped(raw, size)


def _python_values(raw: bytes, dtype: _Dtype) -> list[Any]:
    size = dtype.item_size
    if dtype.code[0] == "U":
        texts = [raw[start : start + size] for start in range(0, len(raw), size)] if size else []
        return [part.decode("utf-32-le", "surrogatepass").rstrip("\0") for part in texts]
    if dtype.code[0] == "S":
        return [raw[start : start + size].rstrip(b"\0") for start in range(0, len(raw), size)] if size else []
    if dtype.code[0] == "c":
        parts = list(struct.unpack(f"<{len(raw) // (size // 2)}{'f' if size == 8 else 'd'}", raw))
        return [complex(real, imag) for real, imag in zip(parts[::2], parts[1::2])]
    return list(struct.unpack(f"<{len(raw) // size}{_FORMATS[dtype.code]}", raw))


def scalar(found: PickledObject) -> Any:
    """``numpy.core.multiarray.scalar(dtype, bytes)``: the same value as a Python number or string."""
    if len(found.args) != 2:
        raise NotPlain
    dtype = _dtype(found.args[0])
    raw = _raw(found.args[1])
    if len(raw) != dtype.item_size or not raw:
        raise NotPlain
    return _python_values(_little_endian(raw, dtype), dtype)[0]


def _sizes(value: Any) -> tuple[int, ...]:
    if isinstance(value, Call) and value.args:
        value = value.args[0]
    if not isinstance(value, tuple) or len(value) > 64 or not all(type(each) is int and each >= 0 for each in value):
        raise NotPlain
    return value


def reconstructed(found: PickledObject) -> Any:
    """``numpy.core.multiarray._reconstruct(ndarray, (0,), b"b")``, with the array as its state."""
    state = found.state
    if not found.args or str(found.args[0]) != "numpy.ndarray" or not isinstance(state, tuple) or len(state) != 5:
        raise NotPlain
    _, shape, dtype, is_fortran, raw = state
    return _array(_sizes(shape), _dtype(dtype), bool(is_fortran), _raw(raw))


def from_buffer(found: PickledObject) -> Any:
    """``numpy.core.numeric._frombuffer(buffer, dtype, shape, order)``: protocol 5."""
    if len(found.args) != 4:
        raise NotPlain
    buffer, dtype, shape, order = found.args
    return _array(_sizes(shape), _dtype(dtype), order == "F", _raw(buffer))


def _array(shape: tuple[int, ...], dtype: _Dtype, is_fortran: bool, raw: bytes) -> Any:
    count = 1
    for size in shape:
        count *= size
    if count * dtype.item_size != len(raw):
        raise NotPlain
    raw = _little_endian(raw, dtype)
    stride = tuple(reversed(contiguous_stride(shape[::-1]))) if is_fortran else contiguous_stride(shape)
    if dtype.code in _SAME:
        return _tensor(_SAME[dtype.code], raw, shape, stride)
    if dtype.code in _WIDER and sys.byteorder == "little":
        narrow, wide, name = _WIDER[dtype.code]
        return _tensor(name, array.array(wide, array.array(narrow, raw)).tobytes(), shape, stride)
    if count > _MAX_LIST:
        raise NotPlain
    values = _python_values(raw, dtype)
    if dtype.code == "u8" and all(value < 1 << 63 for value in values):
        return _tensor("int64", raw, shape, stride)
    return _nested(values, shape, stride, 0)


def _tensor(dtype: str, raw: bytes, shape: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    storage = Storage(dtype, len(raw) // ITEM_SIZES[dtype], "cpu", Inline(raw))
    return Tensor(storage, 0, shape, stride)


def _nested(values: list[Any], shape: tuple[int, ...], stride: tuple[int, ...], start: int) -> Any:
    if not shape:
        return values[start]
    return [_nested(values, shape[1:], stride[1:], start + index * stride[0]) for index in range(shape[0])]


def dtype_name(found: PickledObject) -> str:
    """``numpy.dtype("f4")`` by itself: its name, as ``str(dtype)`` says it and ``numpy.dtype`` takes it."""
    dtype = _dtype(found)
    big = dtype.order if dtype.order == ">" else ""
    if dtype.code[0] in "US":
        return f"{dtype.order}{dtype.code}"
    names = {**_SAME, "u2": "uint16", "u4": "uint32", "u8": "uint64"}
    return f"{big}{dtype.code}" if big else names[dtype.code]


#: name of the class that scalars and arrays, which are read with it, leave
DTYPE = "numpy.dtype"
NUMPY: Mapping[str, Any] = {
    "numpy._core.multiarray.scalar": scalar,
    "numpy._core.multiarray._reconstruct": reconstructed,
    "numpy._core.numeric._frombuffer": from_buffer,
}
