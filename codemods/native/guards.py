"""Under which conditions ``amp.initialize`` runs: what the ``enabled=`` of the native program must say."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from ..tree import walk
from .conditions import Atom, Conditions
from .index import Index
from .levels import OptLevel
from .sites import Initialize, initialize_keyword


@dataclass(frozen=True)
class Guard:
    """The guards of one initialize.

    Args:
        branches: the ``if`` statements around it, outermost first, and whether it stands where they are true.
        facts: what holds once it has run.
        parts: the tests that ``enabled=`` is made of, with the truth each must have.
        is_once: whether one of the guards only keeps it from running twice.
    """

    branches: tuple[tuple[cst.If, bool], ...]
    facts: tuple[Atom, ...]
    parts: tuple[tuple[cst.BaseExpression, bool], ...]
    is_once: bool


def guard_of(site: Initialize, level: OptLevel, index: Index, conditions: Conditions) -> Guard:
    """Return the guards of ``site`` in its own function."""
    branches = tuple(_branches(site.statement, index))
    parts: list[tuple[cst.BaseExpression, bool]] = []
    facts: list[Atom] = []
    is_once = False
    for branch, truth in branches:
        for test, value in split_test(branch.test, truth):
            if conditions.is_availability(test):
                continue
            if _keeps_from_twice(test, value, branch, index):
                is_once = True
                continue
            parts.append((test, value))
            facts += conditions.conjuncts(test, value)
    enabled = initialize_keyword(site, "enabled")
    is_true = isinstance(enabled, cst.Name) and enabled.value == "True"
    if enabled is not None and not is_true and not conditions.is_availability(enabled):
        parts.append((enabled, True))
        facts += conditions.conjuncts(enabled, True)
    if level.switch is not None:
        test, value = level.switch
        parts.append((test, value))
        facts += conditions.conjuncts(test, value)
    return Guard(branches, tuple(facts), tuple(parts), is_once)


def _branches(statement: cst.CSTNode, index: Index) -> list[tuple[cst.If, bool]]:
    found: list[tuple[cst.If, bool]] = []
    inner = statement
    for outer in index.ancestors(statement):
        if isinstance(outer, (cst.FunctionDef, cst.ClassDef, cst.For, cst.While)):
            break  # a scaler is made as often as amp was initialized
        if isinstance(outer, cst.If) and inner is not outer.test and not is_main_guard(outer):
            found.append((outer, inner is outer.body))
        inner = outer
    return found[::-1]


def is_main_guard(node: cst.If) -> bool:
    """``if __name__ == "__main__":``"""
    return any(isinstance(each, cst.Name) and each.value == "__name__" for each in walk(node.test))


def split_test(test: cst.BaseExpression, truth: bool) -> list[tuple[cst.BaseExpression, bool]]:
    """Return the parts of a test that must all have the truth beside them."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return split_test(test.expression, not truth)
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And if truth else cst.Or):
        return split_test(test.left, truth) + split_test(test.right, truth)
    return [(test, truth)]


def _keeps_from_twice(test: cst.BaseExpression, truth: bool, branch: cst.If, index: Index) -> bool:
    """``if not self.amp_initialized:``, where the block sets it."""
    if truth or not isinstance(test, (cst.Name, cst.Attribute)):
        return False
    text = index.module.code_for_node(test)
    for node in index.walk(branch.body):
        is_set = isinstance(node, cst.Assign) and isinstance(node.value, cst.Name) and node.value.value == "True"
        if is_set and any(index.module.code_for_node(target.target) == text for target in node.targets):  # type: ignore[attr-defined]
            return True
    return False
