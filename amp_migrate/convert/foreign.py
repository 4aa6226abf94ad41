"""Classes and functions in a tree that aren't in the reviewed table: find them, refuse them, or take them out."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Any, Callable, Mapping

from .errors import Unsafe
from .notes import Kind, Report
from .records import Call, Global, PickledObject
from .tree import Way, is_leaf, place, walk, walk_up

#: places that are remembered for each class
MAX_PLACES = 1000
#: places that an error names for each class
_SHOWN_PLACES = 3
_SHOWN_NAMES = 10


def _name(value: Any) -> str | None:
    """Return the name of the class or function that ``value`` is or stands for, if it is foreign."""
    from .opening.known_globals import CONSTANTS  # not above, for the package ``opening`` uses this module

    if isinstance(value, PickledObject):
        return str(value.cls)
    if isinstance(value, Global) and str(value) not in CONSTANTS:
        return str(value)
    return None


def find_foreign(tree: Any) -> dict[str, tuple[str, ...]]:
    """Return each foreign class and function, in the file's order, with the places where it stands."""
    found: dict[str, list[str]] = {}
    for value, way in walk(tree):
        name = _name(value)
        if name is not None:
            places = found.setdefault(name, [])
            if len(places) < MAX_PLACES:
                places.append(place(way))
    return {name: tuple(places) for name, places in found.items()}


def refuse_foreign(tree: Any) -> None:
    """Raise Unsafe, with every name and place, if anything in ``tree`` isn't in the reviewed table."""
    found = find_foreign(tree)
    if not found:
        return
    lines = []
    for name, places in list(found.items())[:_SHOWN_NAMES]:
        shown = ", ".join(each or "the whole file" for each in places[:_SHOWN_PLACES])
        more = f" and {len(places) - _SHOWN_PLACES} more places" if len(places) > _SHOWN_PLACES else ""
        lines.append(f"  {name} at {shown}{more}")
    if len(found) > _SHOWN_NAMES:
        lines.append(f"  and {len(found) - _SHOWN_NAMES} more")
    listing = "\n".join(lines)
    raise Unsafe(
        f"opening it needs classes or functions that aren't known to be harmless:\n{listing}\n"
        "Use --drop-unknown to leave these entries out, or --trust to execute the file if you trust whoever wrote it."
    )


def drop_foreign(tree: Any, report: Report) -> Any:
    """Return ``tree`` without the entries that are or hold something foreign; a note says which are gone.

    An entry of a dictionary, list or set goes as a whole: the one nearest to the foreign object. In a list of numbered
    things (``param_groups``) the others move up. In a tuple, whose length has a meaning, None takes the place. A call
    that a foreign argument went into goes itself.

    Raises:
        Unsafe: the whole file is a foreign object, so that nothing would be left.
    """
    dropping = _Drop(report)
    for value, way in walk_up(tree, enter=lambda value: _name(value) is None):
        dropping.clean(value, way)
    result = dropping.now(tree)
    if isinstance(result, _Gone):
        raise Unsafe(f"the whole file is a {result.name}; there would be nothing left without it")
    return result


@dataclass(frozen=True)
class _Gone:
    """Stands for what is dropped, because it is or holds a ``name``."""

    name: str


class _Drop:
    """Gets the objects of a tree one by one, each after what it holds. Dictionaries, lists and sets change in place."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._done: dict[int, tuple[Any, Any]] = {}

    def clean(self, value: Any, way: Way) -> None:
        name = _name(value)
        clean = _CLEANED.get(type(value)) if name is None else None
        result = _Gone(name) if name is not None else value if clean is None else clean(self, value, way)
        self._done[id(value)] = (value, result)

    def now(self, value: Any) -> Any:
        """Return what an object became, or ``_Gone``."""
        done = self._done.get(id(value))
        return value if done is None or is_leaf(value) else done[1]

    def _stays(self, value: Any, way: Way, kind: str, key: Any) -> bool:
        """Whether an entry stays; says so if not."""
        now = self.now(value)
        if isinstance(now, _Gone):
            text = f"{now.name} isn't known to be harmless: dropped"
            self._report.add(Kind.LOST, place((way, kind, key)), text)
        return not isinstance(now, _Gone)

    def clean_dict(self, value: Any, way: Way) -> Any:
        for key in list(value):
            stays = self._stays(key, way, "member", key) and self.now(key) is key
            if stays and self._stays(value[key], way, "key", key):
                value[key] = self.now(value[key])
            else:
                del value[key]
        attributes = getattr(value, "__dict__", {})
        for name in list(attributes):
            if self._stays(attributes[name], way, "attribute", name):
                attributes[name] = self.now(attributes[name])
            else:
                del attributes[name]
        return value

    def clean_list(self, value: Any, way: Way) -> Any:
        value[:] = [self.now(each) for index, each in enumerate(value) if self._stays(each, way, "item", index)]
        return value

    def clean_set(self, value: Any, way: Way) -> Any:
        kept = [self.now(each) for each in value if self._stays(each, way, "member", each)]
        is_same = len(kept) == len(value) and all(each in value for each in kept)
        return value if is_same else type(value)(kept)

    def clean_tuple(self, value: Any, way: Way) -> Any:
        items = enumerate(value)
        new = tuple(self.now(each) if self._stays(each, way, "item", index) else None for index, each in items)
        return value if all(a is b for a, b in zip(new, value)) else new

    def clean_call(self, value: Call, way: Way) -> Any:
        new = tuple(self.now(each) for each in value.args)
        gone = [each for each in new if isinstance(each, _Gone)]
        return gone[0] if gone else value if all(a is b for a, b in zip(new, value.args)) else Call(value.function, new)


_CLEANED: Mapping[type, Callable[[_Drop, Any, Way], Any]] = {
    dict: _Drop.clean_dict,
    OrderedDict: _Drop.clean_dict,
    Counter: _Drop.clean_dict,
    list: _Drop.clean_list,
    set: _Drop.clean_set,
    frozenset: _Drop.clean_set,
    tuple: _Drop.clean_tuple,
    Call: _Drop.clean_call,
}
