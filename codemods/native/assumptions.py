"""Tests that stand more than once in a function, so that a path which has seen one knows the other."""

from __future__ import annotations

import re
from typing import FrozenSet

import libcst as cst

from ..tree import walk
from .conditions import Atom, Conditions
from .index import Index

Assumed = FrozenSet[Atom]
_PURE_CALLS = {"len", "int", "float", "bool", "min", "max"}


class Assumptions:
    """Which ``if`` statements are worth remembering, and what binding a name makes unknown again."""

    def __init__(self, index: Index, conditions: Conditions) -> None:
        self.index = index
        self.conditions = conditions
        self._correlated: set[cst.CSTNode] = set()
        self._find()

    def is_correlated(self, node: cst.If) -> bool:
        """Return whether another ``if`` of the same function asks the same, or the opposite."""
        return node in self._correlated

    def without(self, assumed: Assumed, node: cst.CSTNode) -> Assumed:
        """Return what is still known after ``node``, a statement or the head of a loop, has bound its names."""
        if not assumed:
            return assumed
        words = set(_bound_words(node))
        return frozenset(atom for atom in assumed if not words & set(_words(atom.left + " " + atom.right)))

    def _find(self) -> None:
        seen: dict[tuple[object, str], cst.If] = {}
        for node in walk(self.index.module):
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
    targets: list[cst.CSTNode] = []
    if isinstance(node, cst.Assign):
        targets = [target.target for target in node.targets]
    elif isinstance(node, (cst.AugAssign, cst.AnnAssign, cst.For, cst.Del)):
        targets = [node.target]
    words = []
    for target in targets:
        for each in walk(target):
            if isinstance(each, cst.Attribute):
                words.append(each.attr.value)
            elif isinstance(each, cst.Name):
                words.append(each.value)
    return words


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W\d]\w*", text)
