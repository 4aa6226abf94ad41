"""A checkpoint's tree as text: keys, dtypes, shapes and sizes, with long rows of the same cut short."""

from __future__ import annotations

from typing import Any, Iterator

from ..dtypes import byte_size
from ..records import Call, Global, PickledObject, Storage, Tensor
from ..tree import is_leaf, short_repr

#: entries of one container that are shown before the rest is counted
_SHOWN = 24
#: numbered entries (an optimizer's state, lists) look the same: fewer do
_SHOWN_NUMBERED = 3
_DEEPEST = 12
_LONGEST_VALUE = 60
_LONGEST_KEY = 200


def tree_lines(root: Any) -> Iterator[str]:
    """Yield the lines of the tree."""
    yield from _lines("", root, "", 0, {})


def _lines(name: str, value: Any, path: str, depth: int, seen: dict[int, str]) -> Iterator[str]:
    indent = "  " * depth
    label = f"{indent}{name}: " if name else indent
    entries = _entries(value)
    if entries and id(value) in seen:
        yield f"{label}the same as {seen[id(value)] or 'the whole file'}"
        return
    yield f"{label}{describe(value)}".rstrip()
    if not entries:
        return
    seen[id(value)] = path
    if depth >= _DEEPEST:
        yield f"{indent}  …"
        return
    shown = _SHOWN_NUMBERED if _is_numbered(entries) else _SHOWN
    for key, each in entries[:shown]:
        yield from _lines(key, each, f"{path}.{key}".lstrip("."), depth + 1, seen)
    if len(entries) > shown:
        yield f"{indent}  … {len(entries) - shown} more"


def _is_numbered(entries: list[tuple[str, Any]]) -> bool:
    return len(entries) > _SHOWN_NUMBERED and all(key.strip("[]").isdigit() for key, _ in entries)


def _entries(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(_name(key), each) for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        if all(is_leaf(each) for each in value):
            return []
        return [(f"[{number}]", each) for number, each in enumerate(value)]
    if isinstance(value, PickledObject):
        return [(f".{name}", each) for name, each in value.attributes.items()]
    return []


def _name(key: Any) -> str:
    plain = isinstance(key, str) and key.isprintable() and 0 < len(key) <= _LONGEST_KEY
    return key if plain else _cut(short_repr(key), "")


def describe(value: Any) -> str:
    """Return one line on a value: ``float32[4, 3] 48 B``, ``dict of 6``, ``'resnet50'``."""
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, PickledObject):
        return f"<{value.cls}>"
    if isinstance(value, Call):
        return f"<{value.function}>"
    if isinstance(value, Global):
        return f"<{value}>"
    if isinstance(value, dict):
        return f"{type(value).__name__} of {len(value)}"
    if isinstance(value, (list, tuple)) and all(is_leaf(each) for each in value):
        return _cut(repr(value), f" ({len(value)} items)")
    if isinstance(value, (list, tuple, set, frozenset)):
        return f"{type(value).__name__} of {len(value)}"
    return _cut(repr(value), "")


def _cut(text: str, more: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…{more}"


def _tensor(value: Tensor) -> str:
    extra = "parameter " if value.parameter else ""
    place = "" if value.storage.location == "cpu" else f" on {value.storage.location}"
    sizes = ", ".join(map(str, value.shape))
    return f"{extra}{value.dtype}[{sizes}] {human_size(_tensor_bytes(value))}{place}"


def _tensor_bytes(value: Tensor) -> int:
    numel = value.storage.numel
    return storage_bytes(value.storage) * value.numel // numel if numel else 0


def storage_bytes(storage: Storage) -> int:
    """Return how many bytes a storage takes."""
    return byte_size(storage)


def human_size(count: float) -> str:
    """Return a number of bytes for people: ``1.5 MB``."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
