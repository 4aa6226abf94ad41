"""Where each node of a module stands: its parent, block, function and class."""

from __future__ import annotations

from typing import Iterator, Sequence, Union

import libcst as cst

from ..scopes import Names, Scope
from ..tree import children, walk

Function = Union[cst.FunctionDef, cst.Lambda]
Statement = Union[cst.BaseStatement, cst.BaseSmallStatement]
Block = Union[cst.Module, cst.IndentedBlock, cst.SimpleStatementSuite]
BLOCKS = (cst.Module, cst.IndentedBlock, cst.SimpleStatementSuite)


class Index:
    """Parents, functions, classes and scopes of a module's nodes."""

    def __init__(self, module: cst.Module, names: Names) -> None:
        self.module = module
        self.names = names
        self.parent: dict[cst.CSTNode, cst.CSTNode] = {}
        self.order: dict[cst.CSTNode, int] = {}
        #: every node that holds code, parents before children, in source order
        self.nodes: tuple[cst.CSTNode, ...] = tuple(walk(module))
        self._end: dict[cst.CSTNode, int] = {}
        for place, node in enumerate(self.nodes):
            self.order[node] = place
            for child in children(node):
                self.parent[child] = node
        for place in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[place]
            end = self._end.setdefault(node, place + 1)
            parent = self.parent.get(node)
            if parent is not None:
                self._end[parent] = max(end, self._end.get(parent, 0))

    def walk(self, node: cst.CSTNode) -> Sequence[cst.CSTNode]:
        """Return ``node`` and every node below it: what :func:`~..tree.walk` yields, without going there again."""
        start = self.order.get(node)
        return tuple(walk(node)) if start is None else self.nodes[start : self._end[node]]

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the nodes around ``node``, from the inside out, the module last."""
        while node in self.parent:
            node = self.parent[node]
            yield node

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """Return the innermost ``def`` whose body holds ``node``; None for what the module itself runs."""
        inner = node
        for outer in self.ancestors(node):
            if isinstance(outer, cst.FunctionDef) and inner is outer.body:
                return outer
            inner = outer
        return None

    def class_of(self, function: cst.FunctionDef | None) -> cst.ClassDef | None:
        """Return the class that ``function`` is a method of."""
        if function is None:
            return None
        for outer in self.ancestors(function):
            if isinstance(outer, cst.ClassDef):
                return outer
            if isinstance(outer, cst.FunctionDef):
                return None
        return None

    def scope(self, node: cst.CSTNode) -> Scope:
        """Return the scope in which a name at ``node`` is looked up."""
        inner = node
        for outer in self.ancestors(node):
            inside = self.names.inside.get(outer)
            if inside is not None and self._is_inside(inner, outer):
                return inside
            inner = outer
        return self.names.module

    @staticmethod
    def _is_inside(child: cst.CSTNode, outer: cst.CSTNode) -> bool:
        if isinstance(outer, (cst.FunctionDef, cst.Lambda, cst.ClassDef)):
            return child is outer.body
        return not (isinstance(outer, cst.BaseComp) and child is outer.for_in)

    def statement(self, node: cst.CSTNode) -> Statement:
        """Return the statement that ``node`` belongs to: a small one, or the head of a compound one."""
        if isinstance(node, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
            return node
        for outer in self.ancestors(node):
            if isinstance(outer, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
                return outer
        raise ValueError("a node without a statement")

    def line(self, statement: cst.CSTNode) -> cst.CSTNode:
        """Return what stands in a block: the line of a small statement, or the compound statement itself."""
        parent = self.parent[statement]
        return parent if isinstance(parent, cst.SimpleStatementLine) else statement

    def block(self, statement: cst.CSTNode) -> Block:
        """Return the block that holds ``statement``, a line or a small or compound statement."""
        for outer in self.ancestors(statement):
            if isinstance(outer, BLOCKS):
                return outer
        return self.module

    def before(self, first: cst.CSTNode, second: cst.CSTNode) -> bool:
        """Return whether ``first`` stands before ``second`` in the source."""
        return self.order[first] < self.order[second]

    def holds(self, outer: cst.CSTNode, inner: cst.CSTNode) -> bool:
        """Return whether ``inner`` is ``outer`` or stands inside it."""
        return inner is outer or any(each is outer for each in self.ancestors(inner))


def code_of(node: cst.CSTNode) -> str:
    """Return the source of an expression or statement, without the layout around it."""
    return cst.Module([]).code_for_node(node).strip()
