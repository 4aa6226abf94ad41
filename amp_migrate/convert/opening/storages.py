"""torch's persistent ids: how a pickle refers to a storage whose bytes lie elsewhere in the file.

Source: torch/serialization.py, ``persistent_id`` in ``_save`` and ``_legacy_save``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..dtypes import ITEM_SIZES, storage_dtype
from ..errors import Damaged, Unsafe
from ..records import Global
from ..tree import short_repr

_MAX_NUMEL = 1 << 56


@dataclass(frozen=True)
class StorageId:
    """What a persistent id says about a storage."""

    dtype: str
    key: str
    location: str
    numel: int

    @property
    def byte_size(self) -> int:
        return self.numel * ITEM_SIZES[self.dtype]


def _text(value: Any, what: str) -> str:
    if isinstance(value, bytes):  # Python 2's str
        value = value.decode("latin1")
    if not isinstance(value, str):
        raise Damaged(f"the {what} of a storage is {short_repr(value)}")
    return value


def kind_of(saved: Any) -> str:
    """Return the first part of a persistent id: "storage" or "module"."""
    if not isinstance(saved, tuple) or not saved:
        raise Unsafe(f"the pickle asks its reader for an object called {short_repr(saved)}, which isn't a storage")
    return _text(saved[0], "kind")


def storage_id(saved: tuple[Any, ...]) -> StorageId:
    """Return what ``("storage", class, key, location, numel)`` says; raise Damaged or Unsafe for anything else."""
    if kind_of(saved) != "storage" or len(saved) != 5:
        raise Unsafe(f"the pickle asks its reader for a {short_repr(saved[0])}, which isn't a storage")
    _, cls, key, location, numel = saved
    dtype = storage_dtype(cls) if isinstance(cls, Global) else None
    if dtype is None:
        found = cls if isinstance(cls, Global) else short_repr(cls)
        raise Damaged(f"a storage has the class {found}, which torch doesn't have")
    if type(numel) is not int or not 0 <= numel < _MAX_NUMEL:
        raise Damaged(f"a storage has {short_repr(numel)} elements")
    return StorageId(dtype, _text(key, "key"), _text(location, "location"), numel)
