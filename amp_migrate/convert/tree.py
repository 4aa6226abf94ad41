"""Walking through a checkpoint's tree: every object once, however often it is shared, and where it stands.

A file can share objects so that the number of ways to them is exponential. Whoever walks a tree has to remember what
was seen, by identity; the functions here do.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Mapping, Tuple

from .records import Call, Global, PickledObject, Tensor

#: the way to an object: its parent's way, and the last step of it; None is the root
Way = Any  # Optional[Tuple["Way", str, Any]], which isn't said before Python 3.12

#: kind of step ("key", "item", "attribute", "argument", "member") and the key, index or name
Step = Tuple[str, Any]

_LEAVES = frozenset([type(None), bool, int, float, complex, str, bytes, bytearray])
_LONGEST_KEY = 60


def is_leaf(value: object) -> bool:
    """Whether a value holds no others."""
    return type(value) in _LEAVES


def _dict_children(value: dict[Any, Any]) -> Iterator[tuple[Step, Any]]:
    for key, each in value.items():
        if type(key) not in _LEAVES:
            yield ("member", key), key
        yield ("key", key), each
    for name, each in getattr(value, "__dict__", {}).items():
        yield ("attribute", name), each


def _sequence_children(value: Any) -> Iterator[tuple[Step, Any]]:
    for index, each in enumerate(value):
        yield ("item", index), each


def _set_children(value: Any) -> Iterator[tuple[Step, Any]]:
    for each in value:
        yield ("member", each), each


def _call_children(value: Call) -> Iterator[tuple[Step, Any]]:
    for index, each in enumerate(value.args):
        yield ("argument", index), each


def _object_children(value: PickledObject) -> Iterator[tuple[Step, Any]]:
    for index, each in enumerate(value.args):
        yield ("argument", index), each
    for name, each in (value.kwargs or {}).items():
        yield ("argument", name), each
    if isinstance(value.state, dict):
        for name, each in value.state.items():
            yield ("attribute", name), each
    else:
        yield ("attribute", "__state__"), value.state
    yield from _sequence_children(value.list_items)
    yield from _dict_children(value.dict_items)


def _tensor_children(value: Tensor) -> Iterator[tuple[Step, Any]]:
    yield ("attribute", "metadata"), value.extra


_CHILDREN: Mapping[type, Callable[[Any], Iterator[tuple[Step, Any]]]] = {
    list: _sequence_children,
    tuple: _sequence_children,
    set: _set_children,
    frozenset: _set_children,
    Call: _call_children,
    PickledObject: _object_children,
    Tensor: _tensor_children,
}


def children(value: Any) -> Iterator[tuple[Step, Any]]:
    """Yield what ``value`` holds and isn't a leaf, each with the step that leads to it."""
    find = _dict_children if isinstance(value, dict) else _CHILDREN.get(type(value))
    if find is not None:
        for step, each in find(value):
            if type(each) not in _LEAVES:
                yield step, each


def walk(tree: Any) -> Iterator[tuple[Any, Way]]:
    """Yield every object that isn't a leaf, parents first, in the order of the file, with the way to it.

    What stands at several places comes once, with the first of them; a ``Global``, which holds nothing, at each place.
    """
    seen: set[int] = set()
    waiting: list[tuple[Any, Way]] = [(tree, None)]
    while waiting:
        value, way = waiting.pop()
        if id(value) in seen:
            continue
        if type(value) is not Global:
            seen.add(id(value))
        yield value, way
        found = [(each, (way, *step)) for step, each in children(value)]
        found.reverse()
        waiting += found


def _always(value: Any) -> bool:
    return True


def walk_up(tree: Any, enter: Callable[[Any], bool] = _always) -> Iterator[tuple[Any, Way]]:
    """Yield every object that isn't a leaf once, after what it holds, with the first way to it.

    Nothing calls itself here, so objects may lie in each other as deep as they like. In a circle the object that is
    met first comes last. What ``enter`` says no to is yielded, and not what it holds.
    """
    seen: set[int] = set()
    waiting: list[tuple[Any, Way, bool]] = [(tree, None, False)]
    while waiting:
        value, way, is_done = waiting.pop()
        if is_done:
            yield value, way
        elif id(value) not in seen:
            seen.add(id(value))
            waiting.append((value, way, True))
            if enter(value):
                found = [(each, (way, *step), False) for step, each in children(value)]
                found.reverse()
                waiting += found


def depth(tree: Any) -> int:
    """Return how deep the objects of a tree lie in each other; circles count once."""
    heights: dict[int, int] = {}
    height = 0
    for value, _ in walk_up(tree):
        height = 1
        for _, each in children(value):
            height = max(height, 1 + heights.get(id(each), 0))
        heights[id(value)] = height
    return height


def step_text(kind: str, key: Any) -> str:
    """Return one step as people write it: ``.name``, ``[0]``, ``['odd key']``, ``(argument 0)``."""
    if kind in ("key", "attribute") and isinstance(key, str) and key.isidentifier() and len(key) <= _LONGEST_KEY:
        return f".{key}"
    if kind == "argument":
        return f"(argument {key})"
    if kind == "member":
        return "(key or member)"
    return f"[{short_repr(key)}]"


def short_repr(value: Any) -> str:
    """Return a ``repr`` that is short and quick to make, whatever a file holds there."""
    if isinstance(value, (str, bytes, bytearray)):
        return repr(value) if len(value) <= _LONGEST_KEY else f"{value[:_LONGEST_KEY]!r}…"
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return f"an int of {value.bit_length()} bits"  # Python refuses to write out big ones
    if isinstance(value, PickledObject):
        return f"a {value.cls}"
    return repr(value) if is_leaf(value) else str(value) if isinstance(value, Global) else type(value).__name__


def place(way: Way) -> str:
    """Return the way to an object as a report shows it: ``optimizer.param_groups[0]``; "" is the root."""
    steps: list[str] = []
    while way is not None:
        way, kind, key = way
        steps.append(step_text(kind, key))
    text = "".join(reversed(steps))
    return text[1:] if text.startswith(".") else text
