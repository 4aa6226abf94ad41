"""Tests whether Apex could be imported, and what is left of an expression once that is settled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Sequence, Union

import libcst as cst

from ..imports import ApexImport
from ..scopes import Names
from ..tree import walk
from .conditions import Conditions
from .index import Index

Simplified = Union[cst.BaseExpression, bool]


@dataclass
class GuardedImport:
    """A ``try`` around imports of Apex, and the names by which the file remembers how it went."""

    node: cst.Try
    imports: list[ApexImport] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)
    #: whether nothing else happens in it
    is_only_apex: bool = True


def guarded_imports(index: Index, apex: tuple[ApexImport, ...]) -> list[GuardedImport]:
    """Return the ``try`` statements whose body imports Apex."""
    found: dict[cst.CSTNode, GuardedImport] = {}
    for site in apex:
        inner: cst.CSTNode = site.statement
        for outer in index.ancestors(site.statement):
            if isinstance(outer, cst.Try) and inner is outer.body:
                found.setdefault(outer, GuardedImport(outer)).imports.append(site)
                break
            if isinstance(outer, (cst.FunctionDef, cst.ClassDef)):
                break
            inner = outer
    for each in found.values():
        _read(each)
    return list(found.values())


def only_set_there(guarded: Sequence[GuardedImport], names: Names) -> frozenset[str]:
    """Return the flags that nothing but the ``try`` statements around imports of Apex binds: they say nothing else."""
    inside = {id(node) for each in guarded for node in walk(each.node)}
    flags = {flag for each in guarded for flag in each.flags}
    return frozenset(
        flag for flag in flags if all(id(binder) in inside for binder in names.module.binders.get(flag, ()))
    )


def _read(guarded: GuardedImport) -> None:
    statements = {site.statement for site in guarded.imports}
    for line in guarded.node.body.body:
        for small in line.body if isinstance(line, cst.SimpleStatementLine) else [line]:
            flag = _flag(small)
            if flag is not None:
                guarded.flags.add(flag)
            elif small not in statements:
                guarded.is_only_apex = False
    suites = [handler.body for handler in guarded.node.handlers]
    if guarded.node.orelse is not None:
        suites.append(guarded.node.orelse.body)
    if guarded.node.finalbody is not None:
        guarded.is_only_apex = False
    for suite in suites:
        for line in suite.body:
            for small in line.body if isinstance(line, cst.SimpleStatementLine) else [line]:
                flag = _flag(small)
                if flag is not None:
                    guarded.flags.add(flag)
                elif not _says_nothing(small):
                    guarded.is_only_apex = False


def _flag(small: cst.CSTNode) -> str | None:
    """``HAS_APEX = True``, ``amp = None``"""
    if not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return None
    target, value = small.targets[0].target, small.value
    is_constant = isinstance(value, cst.Name) and value.value in ("True", "False", "None")
    return target.value if is_constant and isinstance(target, cst.Name) else None


def _says_nothing(small: cst.CSTNode) -> bool:
    """Return whether a statement of a handler only raises, passes or says that Apex is missing."""
    if isinstance(small, (cst.Raise, cst.Pass)):
        return True
    if isinstance(small, cst.Expr):
        if isinstance(small.value, (cst.SimpleString, cst.ConcatenatedString)):
            return True
        if isinstance(small.value, cst.Call):
            text = cst.Module([]).code_for_node(small.value.func)
            return text == "print" or text.rpartition(".")[2] in ("warn", "warning", "info", "debug", "error", "exit")
    return False


class Availability:
    """Settles the tests of one file, given that Apex (or what replaces it) is there."""

    def __init__(self, index: Index, conditions: Conditions) -> None:
        self.index = index
        self.conditions = conditions

    def tests(self) -> list[cst.BaseExpression]:
        """Return the largest boolean expressions that ask whether Apex is there, besides other things or alone."""
        found: dict[cst.CSTNode, cst.BaseExpression] = {}
        for node in self.index.nodes:
            if not isinstance(node, (cst.Name, cst.Attribute, cst.Comparison)) or not self._asks(node):
                continue
            top: cst.BaseExpression = node
            parent = self.index.parent.get(node)
            while isinstance(parent, cst.BooleanOperation) or (
                isinstance(parent, cst.UnaryOperation) and isinstance(parent.operator, cst.Not)
            ):
                top, parent = parent, self.index.parent.get(parent)
            found[top] = top
        return list(found)  # type: ignore[arg-type]

    def _asks(self, node: cst.BaseExpression) -> bool:
        parent = self.index.parent.get(node)
        if isinstance(parent, (cst.Attribute, cst.Comparison, cst.ComparisonTarget, cst.AssignTarget, cst.NameItem)):
            return False
        if isinstance(parent, cst.Arg) and parent.keyword is node:
            return False
        if not self.conditions.is_availability(node):
            return False
        # a module that is handed on isn't asked about
        in_test = isinstance(
            parent, (cst.If, cst.While, cst.IfExp, cst.BooleanOperation, cst.UnaryOperation, cst.Assert)
        )
        return isinstance(node, cst.Comparison) or in_test

    def simplified(self, test: cst.BaseExpression) -> Simplified:
        """Return ``test`` with what asks for Apex taken as true; a bool if nothing else is left."""
        if isinstance(test, cst.BooleanOperation):
            left, right = self.simplified(test.left), self.simplified(test.right)
            decisive = isinstance(test.operator, cst.Or)
            if isinstance(left, bool):
                return left if left is decisive else right
            if isinstance(right, bool):
                return right if right is decisive else left
            return test if left is test.left and right is test.right else test.with_changes(left=left, right=right)
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            inner = self.simplified(test.expression)
            if isinstance(inner, bool):
                return not inner
            return test if inner is test.expression else test.with_changes(expression=inner)
        if self.conditions.is_availability(test):
            truth = self.conditions.truth(test, ())
            return True if truth is None else truth
        return test
