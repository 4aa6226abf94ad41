"""Tests that stand more than once in a function, so that a path which has seen one knows the other."""

from __future__ import annotations

import re
from typing import FrozenSet

import libcst as cst

from ..tree import walk
from .conditions import Atom, Conditions
from .index import Index

Assumed = FrozenSet[Atom]
_CHANGES = {
    "add",
    "append",
    "appendleft",
    "clear",
    "discard",
    "extend",
    "insert",
    "pop",
    "popleft",
    "remove",
    "setdefault",
    "update",
}
_PURE_CALLS = {"len", "int", "float", "bool", "min", "max"}


class Assumptions:
    """Which ``if`` statements are worth remembering, and what binding a name makes unknown again."""

    def __init__(self, index: Index, conditions: Conditions) -> None:
        self.index = index
        self.conditions = conditions
        self._correlated: set[cst.CSTNode] = set()
        self._stores: dict[cst.FunctionDef, set[str]] = {}
        self._find()

    def is_correlated(self, node: cst.If) -> bool:
        """Return whether another ``if`` of the same function asks the same, or the opposite."""
        return node in self._correlated

    def without(self, assumed: Assumed, node: cst.CSTNode) -> Assumed:
        """Return what is still known after ``node``, a statement or the head of a loop, has bound its names."""
        if not assumed:
            return assumed
        words = {*_bound_words(node), *self._stored_by_calls(node), *_changed_inside(node)}
        return frozenset(atom for atom in assumed if not words & set(_words(atom.left + " " + atom.right)))

    def _stored_by_calls(self, node: cst.CSTNode) -> set[str]:
        """Return the attributes and outer names that the functions which ``node`` calls bind."""
        head = getattr(node, "iter", getattr(node, "test", node))
        found: set[str] = set()
        for call in self.index.walk(head):
            if isinstance(call, cst.Call):
                for function, _ in self.conditions.solved.functions_of(call):
                    found |= self._stored(function)
        return found

    def _stored(self, function: cst.FunctionDef) -> set[str]:
        if function not in self._stores:
            self._stores[function] = set()  # while it's looked at: recursion adds nothing
            outer = {
                i.name.value
                for n in self.index.walk(function.body)
                if isinstance(n, (cst.Global, cst.Nonlocal))
                for i in n.names
            }
            found: set[str] = set()
            for node in self.index.walk(function.body):
                found |= {w for w, is_name in _bound(node) if not is_name or w in outer}
                if isinstance(node, cst.Call):
                    for called, _ in self.conditions.solved.functions_of(node):
                        found |= self._stored(called)
            self._stores[function] = found
        return self._stores[function]

    def _find(self) -> None:
        seen: dict[tuple[object, str], cst.If] = {}
        for node in self.index.nodes:
            if not isinstance(node, cst.If) or not _is_pure(node.test):
                continue
            function = self.index.function(node)
            for atom in self.conditions.conjuncts(node.test) + self.conditions.conjuncts(node.test, False):
                key = (function, f"{atom.left} {atom.right}")
                if key in seen and seen[key] is not node:
                    self._correlated.update((node, seen[key]))
                seen.setdefault(key, node)


def _is_pure(test: cst.BaseExpression) -> bool:
    for node in walk(test):
        if isinstance(node, (cst.Await, cst.Yield, cst.NamedExpr)):
            return False
        if isinstance(node, cst.Call) and not (isinstance(node.func, cst.Name) and node.func.value in _PURE_CALLS):
            return False
    return True


def _bound_words(node: cst.CSTNode) -> list[str]:
    return [word for word, _ in _bound(node)]


def _bound(node: cst.CSTNode) -> list[tuple[str, bool]]:
    """Return the names and attributes that a statement binds, and whether each is a name."""
    targets: list[cst.CSTNode] = []
    if isinstance(node, cst.Assign):
        targets = [target.target for target in node.targets]
    elif isinstance(node, (cst.AugAssign, cst.AnnAssign, cst.For, cst.Del, cst.NamedExpr)):
        targets = [node.target]
    found = []
    for target in targets:
        for each in walk(target):
            if isinstance(each, cst.Attribute):
                found.append((each.attr.value, False))
            elif isinstance(each, cst.Name):
                found.append((each.value, True))
    return found


def _changed_inside(node: cst.CSTNode) -> set[str]:
    """Return names that a statement binds by ``:=`` or changes by a method: ``buffer.append(x)``."""
    head = getattr(node, "iter", getattr(node, "test", node))
    found: set[str] = set()
    for each in walk(head):
        if isinstance(each, cst.NamedExpr):
            found.update(_bound_words(each))
        func = each.func if isinstance(each, cst.Call) else None
        if isinstance(func, cst.Attribute) and func.attr.value in _CHANGES:
            found.update(n.value for n in walk(func.value) if isinstance(n, cst.Name))
    return found


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W\d]\w*", text)
