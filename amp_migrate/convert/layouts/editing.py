"""A checkpoint's containers: all of them with their places, and the same tree with some of them replaced.

Containers are found with a loop, not by recursion: how deep a file nests is the file's choice. Replacing keeps
identity: what was one object at two places is one afterwards, and what contains nothing new stays the same object.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator

from ..errors import CannotConvert
from ..records import PickledObject
from ..tree import Way, place

#: id of a container → what takes its place
Edits = Dict[int, Any]


@dataclass(frozen=True)
class Spot:
    """A container, or an object that isn't built, and where it was found first."""

    node: Any
    parent: Spot | None = None
    key: Any = None

    @property
    def place(self) -> str:
        """Like ``optimizer.param_groups[0]``; "" for the whole."""
        way: Way = None
        for spot in reversed([self, *self.ancestors]):
            if spot.parent is not None:
                way = (way, "key" if isinstance(spot.parent.node, dict) else "item", spot.key)
        return place(way)

    @property
    def ancestors(self) -> Iterator[Spot]:
        """The containers around this one, innermost first."""
        spot = self.parent
        while spot is not None:
            yield spot
            spot = spot.parent


@dataclass
class Tree:
    """All containers of ``root``, outer before inner, each once."""

    root: Any
    spots: list[Spot] = field(default_factory=list)
    #: id of a container → the containers that hold it
    holders: dict[int, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not is_node(self.root):
            return
        self.holders[id(self.root)] = []
        self.spots.append(Spot(self.root))
        for spot in self.spots:
            for key, child in children(spot.node):
                if not is_node(child):
                    continue
                if id(child) not in self.holders:
                    self.holders[id(child)] = []
                    self.spots.append(Spot(child, spot, key))
                self.holders[id(child)].append(spot.node)

    def replaced(self, edits: Edits) -> Any:
        """Return the tree with ``edits`` made.

        A replacement may hold containers of the tree; they are replaced in it too.

        Raises:
            CannotConvert: if the tree nests too deeply.
        """
        try:
            return _Rebuilding(edits, self._above(edits), self.holders).of(self.root)
        except RecursionError as error:
            raise CannotConvert("the checkpoint nests containers too deeply") from error

    def _above(self, edits: Edits) -> set[int]:
        """Ids of the containers that hold an edited one, directly or not."""
        above: set[int] = set()
        todo = [key for key in edits if key in self.holders]
        while todo:
            for holder in self.holders[todo.pop()]:
                if id(holder) not in above:
                    above.add(id(holder))
                    todo.append(id(holder))
        return above


@dataclass
class _Rebuilding:
    edits: Edits
    above: set[int]
    known: dict[int, list[Any]]
    done: dict[int, Any] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)

    def of(self, node: Any) -> Any:
        if not is_node(node):
            return node
        if id(node) in self.done:
            return self.done[id(node)]
        new = node
        while id(new) in self.edits:
            new = self.edits[id(new)]
        self.kept.append((node, new))
        same = id(new) in self.known and id(new) not in self.above
        if same or not is_node(new) or isinstance(new, PickledObject):
            self.done[id(node)] = new
            return new
        if id(new) in self.done:
            self.done[id(node)] = self.done[id(new)]
            return self.done[id(node)]
        return self._copied(node, new)

    def _copied(self, node: Any, new: Any) -> Any:
        made: Any
        if isinstance(new, tuple):
            items = [self.of(item) for item in new]
            made = type(new)(*items) if hasattr(new, "_fields") else type(new)(items)
            self.done[id(node)] = self.done[id(new)] = made
            return made
        made = copy.copy(new)
        made.clear()
        # before its items: a container may hold itself
        self.done[id(node)] = self.done[id(new)] = made
        for key, child in children(new):
            if isinstance(made, dict):
                made[key] = self.of(child)
            else:
                made.append(self.of(child))
        return made


def is_node(value: Any) -> bool:
    return isinstance(value, (dict, list, tuple, PickledObject))


def children(node: Any) -> Any:
    """``(key, child)`` pairs; an object that isn't built has none that a layout could change."""
    if isinstance(node, dict):
        return node.items()
    if isinstance(node, (list, tuple)):
        return enumerate(node)
    return ()


def with_items(node: dict[Any, Any], **changes: Any) -> dict[Any, Any]:
    """A copy of a dict, of the same kind, with some values set."""
    new = copy.copy(node)
    new.update(changes)
    return new


def renamed(node: dict[Any, Any], keys: dict[Any, Any]) -> dict[Any, Any]:
    """A copy of a dict in which some keys have new names, at the old positions."""
    new = copy.copy(node)
    new.clear()
    for key, value in node.items():
        new[keys.get(key, key)] = value
    return new


def without(node: dict[Any, Any], *keys: Any) -> dict[Any, Any]:
    """A copy of a dict without some keys."""
    new = copy.copy(node)
    for key in keys:
        new.pop(key, None)
    return new
