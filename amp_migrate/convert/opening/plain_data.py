"""After reading: harmless foreign objects in a tree become plain data, each with a note that says so."""

from __future__ import annotations

import dataclasses
from collections import Counter, OrderedDict
from typing import Any, Callable, Mapping

from ..dtypes import ITEM_SIZES
from ..notes import Kind, Report
from ..records import Call, FileRange, Inline, PickledObject, Source, Storage
from ..tree import Way, is_leaf, place, walk_up
from .numpy_data import DTYPE, NUMPY, dtype_name
from .plain_values import CONVERSIONS, Conversion, NotPlain
from .torch_objects import StorageView

#: places that a note names; more are counted
_SHOWN_PLACES = 3

_ALL: Mapping[str, tuple[str, Conversion]] = {
    **CONVERSIONS,
    **{name: ("a plain value", convert) for name, convert in NUMPY.items()},
}


def becomes_plain(name: str) -> bool:
    """Return whether instances of the class, or results of the function, called ``name`` become plain data."""
    return name in _ALL or name == DTYPE


def make_plain(tree: Any, report: Report) -> Any:
    """Return ``tree`` with every instance of a reviewed class replaced by plain data.

    Dictionaries, lists and objects are changed in place, so what is shared stays shared.
    """
    conversion = _Plain(_ALL)
    result = conversion.all_of(tree)
    if conversion.has_dtypes:
        # those of scalars and arrays went with them; now the ones that stand by themselves
        dtypes = _Plain({DTYPE: ("its name", dtype_name)})
        result = dtypes.all_of(result)
        conversion.changed.update(dtypes.changed)
    for (cls, becomes), places in conversion.changed.items():
        others = f" and {len(places) - _SHOWN_PLACES} more" if len(places) > _SHOWN_PLACES else ""
        where = ", ".join(each or "the whole file" for each in places[:_SHOWN_PLACES])
        report.add(Kind.CHANGED, places[0], f"{cls} becomes {becomes}: {where}{others}")
    return result


class _Plain:
    """Gets the objects of a tree one by one, each after what it holds."""

    def __init__(self, table: Mapping[str, tuple[str, Conversion]]) -> None:
        self._table = table
        self.has_dtypes = False
        #: by identity: the object (kept, so that its id isn't used again) and what it became
        self._done: dict[int, tuple[Any, Any]] = {}
        self.changed: dict[tuple[str, str], list[str]] = {}

    def all_of(self, tree: Any) -> Any:
        """Return a tree with everything in it changed."""
        for value, way in walk_up(tree):
            self.change(value, way)
        return self.now(tree)

    def change(self, value: Any, way: Way) -> None:
        change = _BY_TYPE.get(type(value))
        if change is not None:
            self._done[id(value)] = (value, change(self, value, way))

    def now(self, value: Any) -> Any:
        """Return what an object became. In a circle one of them is asked for too early, and stays as it is."""
        done = self._done.get(id(value))
        return value if done is None or is_leaf(value) else done[1]

    def change_dict(self, value: Any, way: Way) -> Any:
        for key, each in value.items():
            value[key] = self.now(each)
        keys = [self._key(key) for key in value]
        if any(new is not old for new, old in zip(keys, value)):
            values = list(value.values())
            value.clear()
            value.update(zip(keys, values))
        for name, each in getattr(value, "__dict__", {}).items():
            vars(value)[name] = self.now(each)
        return value

    def _key(self, key: Any) -> Any:
        new = self.now(key)
        return new if type(new) in (str, int, float, bool, tuple) or new is None else key

    def change_list(self, value: Any, way: Way) -> Any:
        value[:] = [self.now(each) for each in value]
        return value

    def change_tuple(self, value: Any, way: Way) -> Any:
        new = tuple(self.now(each) for each in value)
        return value if all(a is b for a, b in zip(new, value)) else new

    def change_set(self, value: Any, way: Way) -> Any:
        new = [self._key(each) for each in value]
        return value if all(a is b for a, b in zip(new, value)) else type(value)(new)

    def change_call(self, value: Call, way: Way) -> Any:
        args = tuple(self.now(each) for each in value.args)
        return value if all(a is b for a, b in zip(args, value.args)) else Call(value.function, args)

    def change_view(self, value: StorageView, way: Way) -> Any:
        """A part of a storage that stands by itself, outside of a tensor: becomes a storage of its own."""
        root = value.root
        source = _part(root, value.offset, value.numel)
        return dataclasses.replace(root, numel=value.numel, source=source)

    def change_object(self, value: PickledObject, way: Way) -> Any:
        value.args = tuple(self.now(each) for each in value.args)
        if value.kwargs:
            self.change_dict(value.kwargs, way)
        if isinstance(value.state, dict):
            for name, each in value.state.items():
                value.state[name] = self.now(each)
        else:
            value.state = self.now(value.state)
        value.list_items = [self.now(each) for each in value.list_items]
        self.change_dict(value.dict_items, way)
        self.has_dtypes = self.has_dtypes or str(value.cls) == DTYPE
        becomes, change = self._table.get(str(value.cls), ("", None))
        if change is None:
            return value
        try:
            result = change(value)
        except NotPlain:
            return value
        self.changed.setdefault((_class_name(value), becomes), []).append(place(way))
        return result


def _class_name(value: PickledObject) -> str:
    return "a numpy array" if value.cls.name == "_reconstruct" else f"{value.cls}"


def _part(storage: Storage, offset: int, numel: int) -> Source:
    item, source = ITEM_SIZES[storage.dtype], storage.source
    if isinstance(source, FileRange):
        return dataclasses.replace(source, offset=source.offset + offset * item, length=numel * item, crc32=None)
    return Inline(b"".join(source.chunks())[offset * item : (offset + numel) * item])


_BY_TYPE: Mapping[type, Callable[[_Plain, Any, Way], Any]] = {
    dict: _Plain.change_dict,
    OrderedDict: _Plain.change_dict,
    Counter: _Plain.change_dict,
    list: _Plain.change_list,
    tuple: _Plain.change_tuple,
    set: _Plain.change_set,
    frozenset: _Plain.change_set,
    Call: _Plain.change_call,
    StorageView: _Plain.change_view,
    PickledObject: _Plain.change_object,
}
