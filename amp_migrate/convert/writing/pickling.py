"""A tree as a pickle that ``torch.load(weights_only=True)`` takes: protocol 2, and of it only what that reader knows.

Written here rather than by Python's pickler, which would ask the records how they want to be pickled, calls itself for
every level, and writes what torch's reader refuses (protocol 2 sets and bytes through ``__builtin__``, for instance).

Sources: torch/_weights_only_unpickler.py (torch 1.13 to 2.15), Lib/pickle.py, torch/serialization.py (``_save``).
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict
from typing import Any, Callable, Mapping

from ..dtypes import storage_class
from ..errors import CannotConvert, Unsafe
from ..records import Call, Global, PickledObject, Storage, Tensor
from ..tree import short_repr

#: items that are put on the reader's stack before they go into a list or dictionary (Lib/pickle.py, ``_BATCHSIZE``)
_BATCH = 1000

_ORDERED_DICT = Global("collections", "OrderedDict")
_COUNTER = Global("collections", "Counter")
_REBUILD = Global("torch._utils", "_rebuild_tensor_v2")
_REBUILD_WITH_DTYPE = Global("torch._utils", "_rebuild_tensor_v3")
_REBUILD_PARAMETER = Global("torch._utils", "_rebuild_parameter")


class _Code(bytes):
    """Operations to write as they are, among the values that wait to be written."""


class _Memoize:
    """Waits behind an object's operations, and gives it a number. ``undo`` takes back what was written for a tuple."""

    def __init__(self, value: Any, undo: bytes = b"0") -> None:
        self.value = value
        self.undo = undo


class _Reduce:
    """Waits behind a function and its arguments, and calls it for ``value``."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Pickler:
    """Writes one tree. ``storages`` are those that it uses, in their order; a storage's place is its key."""

    def __init__(self) -> None:
        self.storages: dict[int, Storage] = {}
        self._keys: dict[int, str] = {}
        self._out = bytearray(b"\x80\x02")
        self._memo: dict[Any, int] = {}
        self._alive: list[Any] = []
        self._waiting: list[Any] = []

    def dump(self, tree: Any) -> bytes:
        """Return the pickle of ``tree``.

        Raises:
            Unsafe: it holds a foreign object.
            CannotConvert: it holds something that is neither plain data nor a record.
        """
        self._waiting = [tree]
        while self._waiting:
            value = self._waiting.pop()
            write = _BY_TYPE.get(type(value))
            if write is None:
                raise CannotConvert(f"a {type(value).__name__} can't be written: {short_repr(value)}")
            write(self, value)
        self._out += b"."
        return bytes(self._out)

    def _next(self, *parts: Any) -> None:
        """Write ``parts``, in this order, before everything else that waits."""
        self._waiting.extend(reversed(parts))

    # the memo

    def _recall(self, key: Any) -> bool:
        """Write a reference if the object was written before."""
        index = self._memo.get(key)
        if index is None:
            return False
        self._out += b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index)
        return True

    def _number(self, key: Any, value: Any = None) -> None:
        index = len(self._memo)
        self._memo[key] = index
        self._alive.append(value)  # the memo goes by identity, so nothing may go
        self._out += b"q" + bytes([index]) if index < 256 else b"r" + struct.pack("<I", index)

    def write_number(self, waiting: _Memoize) -> None:
        if id(waiting.value) in self._memo:  # a tuple in a circle: its inner one has been written by now
            self._out += waiting.undo
            self._recall(id(waiting.value))
        else:
            self._number(id(waiting.value), waiting.value)

    def write_reduce(self, waiting: _Reduce) -> None:
        if waiting.value is not None and id(waiting.value) in self._memo:
            self._out += b"00"  # the function and its arguments
            self._recall(id(waiting.value))
            return
        self._out += b"R"
        if waiting.value is not None:
            self._number(id(waiting.value), waiting.value)

    def write_code(self, value: _Code) -> None:
        self._out += value

    # plain values

    def write_none(self, value: None) -> None:
        self._out += b"N"

    def write_bool(self, value: bool) -> None:
        self._out += b"\x88" if value else b"\x89"

    def write_int(self, value: int) -> None:
        if 0 <= value < 1 << 8:
            self._out += b"K" + bytes([value])
        elif 0 <= value < 1 << 16:
            self._out += b"M" + struct.pack("<H", value)
        elif -(1 << 31) <= value < 1 << 31:
            self._out += b"J" + struct.pack("<i", value)
        else:
            data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            length = b"\x8a" + bytes([len(data)]) if len(data) < 256 else b"\x8b" + struct.pack("<i", len(data))
            self._out += length + data

    def write_float(self, value: float) -> None:
        self._out += b"G" + struct.pack(">d", value)

    def write_str(self, value: str) -> None:
        if self._recall(value):
            return
        data = value.encode("utf-8", "surrogatepass")
        if len(data) >= 1 << 32:
            raise CannotConvert("a string of more than 4 GiB can't be written: torch's reader has no length for it")
        self._out += b"X" + struct.pack("<I", len(data)) + data
        self._number(value)

    def write_bytes(self, value: bytes) -> None:
        self._next(Global("_codecs", "encode"), (value.decode("latin1"), "latin1"), _Reduce(None))

    def write_bytearray(self, value: bytearray) -> None:
        if not self._recall(id(value)):
            self._next(Global("builtins", "bytearray"), (bytes(value),), _Reduce(value))

    def write_complex(self, value: complex) -> None:
        self._next(Global("builtins", "complex"), (value.real, value.imag), _Reduce(None))

    # containers

    def write_list(self, value: list[Any]) -> None:
        if self._recall(id(value)):
            return
        self._out += b"]"
        self._number(id(value), value)
        self._next(*_batches(value, b"e"))

    def write_tuple(self, value: tuple[Any, ...]) -> None:
        if not value:
            self._out += b")"
        elif not self._recall(id(value)):
            if len(value) <= 3:
                build, undo = (b"\x85", b"\x86", b"\x87")[len(value) - 1], b"0"
                self._next(*value, _Code(build), _Memoize(value, undo))
            else:
                self._next(_Code(b"("), *value, _Code(b"t"), _Memoize(value))

    def write_dict(self, value: dict[Any, Any]) -> None:
        if self._recall(id(value)):
            return
        self._out += b"}"
        self._number(id(value), value)
        self._next(*_batches(_flat(value), b"u"))

    def write_ordered_dict(self, value: OrderedDict[Any, Any]) -> None:
        if self._recall(id(value)):
            return
        attributes = [dict(vars(value)), _Code(b"b")] if getattr(value, "__dict__", None) else []
        self._next(_ORDERED_DICT, (), _Reduce(value), *_batches(_flat(value), b"u"), *attributes)

    def write_counter(self, value: Counter[Any]) -> None:
        if not self._recall(id(value)):
            self._next(_COUNTER, (dict(value),), _Reduce(value))

    def write_set(self, value: Any) -> None:
        """Sets of both kinds: torch's reader knows no frozenset."""
        if not self._recall(id(value)):
            self._next(Global("builtins", "set"), (_in_order(value),), _Reduce(value))

    # records

    def write_global(self, value: Global) -> None:
        if not self._recall((value.module, value.name)):
            self._out += b"c" + value.module.encode() + b"\n" + value.name.encode() + b"\n"
            self._number((value.module, value.name))

    def refuse(self, value: PickledObject) -> None:
        raise Unsafe(f"a {value.cls} isn't known to be harmless, and can't be written")

    def write_call(self, value: Call) -> None:
        if not self._recall(id(value)):
            self._next(value.function, value.args, _Reduce(value))

    def write_storage(self, value: Storage) -> None:
        self._next(self._persistent_id(value), _Code(b"Q"))

    def _persistent_id(self, value: Storage) -> tuple[Any, ...]:
        cls = storage_class(value.dtype)
        if cls is None:
            raise CannotConvert(f"a storage of {value.dtype} can't be written: torch keeps those as untyped bytes")
        if id(value) not in self.storages:
            self.storages[id(value)] = value
            self._keys[id(value)] = f"{len(self._keys)}"
        return ("storage", cls, self._keys[id(value)], value.location, value.numel)

    def write_tensor(self, value: Tensor) -> None:
        if self._recall(id(value)):
            return
        hooks: OrderedDict[Any, Any] = OrderedDict()
        requires_grad = value.requires_grad and not value.parameter
        args: list[Any] = [value.storage, value.offset, value.shape, value.stride, requires_grad, hooks]
        rebuild = _REBUILD
        if value.view_dtype is not None:
            rebuild = _REBUILD_WITH_DTYPE
            args.append(Global("torch", value.view_dtype))
        if value.extra is not None:
            args.append(value.extra)
        inner = [rebuild, _Code(b"("), *args, _Code(b"t")]
        if value.parameter:
            grad = value.requires_grad
            self._next(_REBUILD_PARAMETER, _Code(b"("), *inner, _Reduce(None), grad, hooks, _Code(b"t"), _Reduce(value))
        else:
            self._next(*inner, _Reduce(value))


def _flat(value: Mapping[Any, Any]) -> list[Any]:
    """Return keys and values in turns. A key has to be hashable, so a frozenset in it becomes a tuple."""
    return [part for key, each in value.items() for part in (_as_key(key), each)]


def _as_key(key: Any) -> Any:
    if isinstance(key, frozenset):
        return tuple(_as_key(each) for each in _in_order(key))
    if type(key) is tuple and any(type(part) in (tuple, frozenset) for part in key):
        return tuple(_as_key(part) for part in key)
    return key


def _in_order(members: Any) -> list[Any]:
    """Return the members of a set, in the same order in every run if they can be sorted."""
    try:
        return sorted(members)
    except TypeError:
        return list(members)


def _batches(items: list[Any], end: bytes) -> list[Any]:
    parts: list[Any] = []
    for start in range(0, len(items), _BATCH):
        parts.extend((_Code(b"("), *items[start : start + _BATCH], _Code(end)))
    return parts


_BY_TYPE: Mapping[type, Callable[[Pickler, Any], None]] = {
    _Code: Pickler.write_code,
    _Memoize: Pickler.write_number,
    _Reduce: Pickler.write_reduce,
    type(None): Pickler.write_none,
    bool: Pickler.write_bool,
    int: Pickler.write_int,
    float: Pickler.write_float,
    complex: Pickler.write_complex,
    str: Pickler.write_str,
    bytes: Pickler.write_bytes,
    bytearray: Pickler.write_bytearray,
    list: Pickler.write_list,
    tuple: Pickler.write_tuple,
    dict: Pickler.write_dict,
    OrderedDict: Pickler.write_ordered_dict,
    Counter: Pickler.write_counter,
    set: Pickler.write_set,
    frozenset: Pickler.write_set,
    Global: Pickler.write_global,
    PickledObject: Pickler.refuse,
    Call: Pickler.write_call,
    Storage: Pickler.write_storage,
    Tensor: Pickler.write_tensor,
}
