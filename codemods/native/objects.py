"""Which object an expression names, so that two spellings of one optimizer are one optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator

import libcst as cst

from .index import Index, code_of
from .solve import Solved
from .values import OBJECTS, Made, Several, Value


@dataclass(frozen=True)
class Entity:
    """One optimizer (or model). ``name`` is how the file calls it, for messages and for new names."""

    value: Value
    name: str


class Objects:
    """Joins the values of a file into entities: what one name is bound to in turn is one entity."""

    def __init__(self, solved: Solved) -> None:
        self.solved = solved
        self.index: Index = solved.index
        self._leader: dict[Value, Value] = {}
        self._names: dict[Value, str] = {}
        self._join_assignments()

    def values(self, node: cst.BaseExpression) -> set[Value]:
        """Return the leaders of the objects that ``node`` can stand for."""
        return {self.leader(value) for value in self.solved.of(node) if isinstance(value, OBJECTS)}

    def leader(self, value: Value) -> Value:
        """Return the value that stands for all that share a name with ``value``."""
        while value in self._leader:
            value = self._leader[value]
        return value

    def one(self, node: cst.BaseExpression) -> Entity:
        """Return the one object that ``node`` stands for.

        Raises CannotFollow if it's none or several.
        """
        from .problem import CannotFollow

        found = self.values(node)
        if len(found) != 1:
            how = "can be several objects" if found else "can't be followed to where it's made"
            raise CannotFollow(f"`{code_of(node)}` {how}", node)
        value = found.pop()
        if isinstance(value, Made) and self._is_made_many_times(value.call):
            raise CannotFollow(f"`{code_of(node)}` is made in a list, so there can be several", node)
        name = self._names.setdefault(value, code_of(node))
        return Entity(value, name)

    def all(self, node: cst.BaseExpression) -> Iterator[Entity]:
        """Yield the objects of ``node``: of each element if it is a list or tuple display."""
        displays = [value.node for value in self.solved.of(node) if isinstance(value, Several)]
        if not displays:
            yield self.one(node)
            return
        from .problem import CannotFollow

        if len(displays) != 1 or not isinstance(displays[0], (cst.List, cst.Tuple)):
            raise CannotFollow(f"the elements of `{code_of(node)}` can't be followed", node)
        for element in displays[0].elements:
            yield self.one(element.value)

    def _join_assignments(self) -> None:
        first: dict[object, Value] = {}
        for node in self.index.nodes:
            if not isinstance(node, cst.Assign):
                continue
            for target in node.targets:
                self._join_target(target.target, self.solved.of(node.value), first)

    def _join_target(self, target: cst.CSTNode, values: frozenset[Value], first: dict[object, Value]) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            for place, element in enumerate(target.elements):
                self._join_target(element.value, self.solved.element(values, place), first)
            return
        for key in self.solved.keys(target):
            for value in (each for each in values if isinstance(each, Made)):
                known = self.leader(first.setdefault(key, value))
                if self.leader(value) != known:
                    self._leader[self.leader(value)] = known

    def _is_made_many_times(self, call: cst.Call) -> bool:
        for outer in self.index.ancestors(call):
            if isinstance(outer, cst.BaseComp):
                return True
            if isinstance(outer, (cst.BaseStatement, cst.BaseSmallStatement)):
                break
        around = self.index.parent.get(call)
        if isinstance(around, cst.Arg):
            outer_call = self.index.parent[around]
            func = outer_call.func if isinstance(outer_call, cst.Call) else None
            return isinstance(func, cst.Attribute) and func.attr.value in ("append", "extend", "insert", "setdefault")
        return False
