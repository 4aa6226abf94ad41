"""DCP's flat entries as the nested state that was saved."""

from __future__ import annotations

from itertools import chain
from typing import Any, Dict, Mapping

from ..errors import Damaged
from ..layouts.editing import Tree
from ..layouts.kinds import is_optimizer_state
from ..tree import short_repr
from .metadata import Way

#: items of all lists together; an index is a claim of the file, and a list is as long as its highest one
_MOST_ITEMS = 1 << 20


class _Keys(Dict[str, Any]):
    """A dictionary on the way to entries. An entry may be a dictionary itself, which is another thing."""


class _Items(Dict[int, Any]):
    """A list on the way to entries, while only some of its items are known."""


def nested(flat: Mapping[str, Any], ways: Mapping[str, Way]) -> dict[str, Any]:
    """Return the state with every entry at its place: a step that is a number leads into a list.

    Keys are text, as DCP keeps them, save for those of an optimizer's state: they are what its groups call the
    parameters. Saving makes text of them again.

    Raises:
        Damaged: the places contradict each other.
    """
    root = _Keys()
    for name, value in flat.items():
        _put(root, ways[name], value)
    state = _Lists().filled(root)
    _number_parameters(state)
    return state  # type: ignore[no-any-return]


def _put(root: _Keys, way: Way, value: Any) -> None:
    place = short_repr(".".join(map(str, way)))
    node: Any = root
    for step, following in zip(way, way[1:]):
        kind = _Items if type(following) is int else _Keys
        node = node.setdefault(step, kind())
        if type(node) is not kind:
            raise Damaged(f"the entry {place} lies in something that is no container, or one of two kinds")
    if way[-1] in node:
        raise Damaged(f"there are two entries at {place}")
    node[way[-1]] = value


class _Lists:
    def __init__(self) -> None:
        self._left = _MOST_ITEMS

    def filled(self, node: Any) -> Any:
        """Return ``node`` with lists in place of numbered items. What DCP doesn't keep, empty containers, is None."""
        if type(node) is _Keys:
            return {key: self.filled(value) for key, value in node.items()}
        if type(node) is not _Items:
            return node
        length = max(node) + 1
        self._left -= length
        if self._left < 0:
            raise Damaged(f"its lists have more than {_MOST_ITEMS} items")
        return [self.filled(node.get(index)) for index in range(length)]


def _number_parameters(root: Any) -> None:
    for spot in Tree(root).spots:
        if is_optimizer_state(spot.node):
            params = chain.from_iterable(group["params"] for group in spot.node["param_groups"])
            numbers = {str(one): one for one in params if type(one) is int}
            spot.node["state"] = {numbers.get(key, key): value for key, value in spot.node["state"].items()}
