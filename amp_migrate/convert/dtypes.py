"""torch's dtypes as names: bytes per element, and the storage class that a pickle names them by.

Source: torch/storage.py (``_dtype_to_storage_type_map``, ``_new_dtypes``), torch/serialization.py (``StorageType``).
"""

from __future__ import annotations

import array
from typing import Mapping

from .records import Global, Storage

#: bytes without a dtype, as ``torch.UntypedStorage`` holds them; only views of them (``Tensor.view_dtype``) have one
UNTYPED = "untyped"

#: dtypes that have a storage class of their own, from the first torch on
_STORAGE_CLASSES: Mapping[str, str] = {
    "float64": "DoubleStorage",
    "float32": "FloatStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "int64": "LongStorage",
    "int32": "IntStorage",
    "int16": "ShortStorage",
    "int8": "CharStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
    "complex128": "ComplexDoubleStorage",
    "complex64": "ComplexFloatStorage",
    "qint8": "QInt8Storage",
    "quint8": "QUInt8Storage",
    "qint32": "QInt32Storage",
    "quint4x2": "QUInt4x2Storage",
    "quint2x4": "QUInt2x4Storage",
}

#: bytes of an element of a storage
ITEM_SIZES: Mapping[str, int] = {
    UNTYPED: 1,
    **dict.fromkeys(["complex128"], 16),
    **dict.fromkeys(["float64", "int64", "complex64", "uint64"], 8),
    **dict.fromkeys(["float32", "int32", "qint32", "complex32", "uint32"], 4),
    **dict.fromkeys(["float16", "bfloat16", "int16", "uint16", "bits16"], 2),
    **dict.fromkeys(["int8", "uint8", "bool", "qint8", "quint8", "quint4x2", "quint2x4"], 1),
    **dict.fromkeys(["float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "float8_e8m0fnu"], 1),
    **dict.fromkeys(["float4_e2m1fn_x2", "bits8", "bits1x8", "bits2x4", "bits4x2"], 1),
    **dict.fromkeys([f"{kind}{bits}" for kind in ("int", "uint") for bits in range(1, 8)], 1),
}

#: dtypes of which a storage's element holds several elements of a tensor
PACKED: Mapping[str, int] = {"quint4x2": 2, "quint2x4": 4}

#: bytes that are swapped as one between machines of different byte order, where that isn't the whole element
SWAPPED_SIZES: Mapping[str, int] = {"complex128": 8, "complex64": 4, "complex32": 2}

#: what else ``torch.NAME`` stands for by itself in a pickle (torch/_weights_only_unpickler.py allows these)
QUANTIZATION_SCHEMES = (
    "per_tensor_affine",
    "per_tensor_symmetric",
    "per_channel_affine",
    "per_channel_symmetric",
    "per_channel_affine_float_qparams",
)

_UNTYPED_CLASS = Global("torch.storage", "UntypedStorage")
_BY_CLASS: Mapping[str, str] = {
    **{name: dtype for dtype, name in _STORAGE_CLASSES.items()},
    "UntypedStorage": UNTYPED,
    "_UntypedStorage": UNTYPED,
}
_STORAGE_MODULES = ("torch", "torch.cuda", "torch.storage")


def storage_dtype(cls: Global) -> str | None:
    """Return the dtype of a storage class (``torch.cuda.FloatStorage``), or None for what is none."""
    return _BY_CLASS.get(cls.name) if cls.module in _STORAGE_MODULES else None


def storage_class(dtype: str) -> Global | None:
    """Return the class that a pickle names for a storage of ``dtype``, or None if torch has none for it."""
    if dtype == UNTYPED:
        return _UNTYPED_CLASS
    name = _STORAGE_CLASSES.get(dtype)
    return Global("torch", name) if name else None


def named_dtype(value: Global) -> str | None:
    """Return the dtype that ``torch.NAME`` is, or None."""
    is_dtype = value.module == "torch" and value.name in ITEM_SIZES and value.name != UNTYPED
    return value.name if is_dtype else None


def byte_size(storage: Storage) -> int:
    return storage.numel * ITEM_SIZES[storage.dtype]


def swapped(raw: bytes, size: int) -> bytes:
    """Return ``raw`` with the bytes of each ``size`` bytes in the other order."""
    if size == 1:
        return raw
    items = array.array({2: "H", 4: "I", 8: "Q"}[size], raw)
    items.byteswap()
    return items.tobytes()
