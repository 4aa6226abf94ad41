"""Apply edits to a tree: only the nodes on the way to an edit are made anew, everything else is shared."""

from __future__ import annotations

from typing import Sequence, Tuple

import libcst as cst

from .edits import Edit
from .tree import code_fields, parents

Nodes = Tuple[cst.CSTNode, ...]
#: comments that speak to a tool about the line that they stand on, and so belong on both halves of a split line
_PRAGMAS = ("noqa", "type:", "pylint:", "pragma:", "isort:", "ruff:", "fmt:", "nosec", "pyright:", "mypy:")


def apply_edits(module: cst.Module, edits: Sequence[Edit]) -> cst.Module:
    """Return ``module`` with every edit made. No edit may stand inside the node of another."""
    new = _Rebuild(module, edits).node(module)
    assert isinstance(new[0], cst.Module)
    return new[0]


class _Rebuild:
    def __init__(self, module: cst.Module, edits: Sequence[Edit]) -> None:
        self.replacements: dict[cst.CSTNode, Nodes] = {edit.node: edit.replacement for edit in edits}
        if len(self.replacements) < len(edits):
            raise ValueError("two edits of the same node")
        self.on_the_way = _ancestors(module, edits)
        if any(node in self.on_the_way for node in self.replacements):
            raise ValueError("an edit inside another edit's node")

    def node(self, node: cst.CSTNode) -> Nodes:
        if node in self.replacements:
            return self.replacements[node]
        if node not in self.on_the_way:
            return (node,)
        if isinstance(node, cst.SimpleStatementLine):
            return self.line(node)
        return (node.with_changes(**{name: self.field(getattr(node, name)) for name in code_fields(node)}),)

    def field(self, value: object) -> object:
        if isinstance(value, cst.CSTNode):
            new = self.node(value)
            if len(new) != 1:
                raise ValueError(f"{type(value).__name__} must become exactly one node, not {len(new)}")
            return new[0]
        if isinstance(value, (list, tuple)):
            if any(isinstance(item, cst.BaseSmallStatement) for item in value):
                return _joined(value, [self.node(item) for item in value])
            return [new for item in value for new in (self.node(item) if isinstance(item, cst.CSTNode) else (item,))]
        return value

    def line(self, line: cst.SimpleStatementLine) -> Nodes:
        """Give each statement a line of its own if the old one had its line for itself; join them with ``;`` if not."""
        if len(line.body) > 1 or line.body[0].semicolon != cst.MaybeSentinel.DEFAULT:
            body = _joined(line.body, [self.node(item) for item in line.body])
            return (line.with_changes(body=body),) if body else ()
        statements = self.node(line.body[0])
        lines = [line.with_changes(body=[statement]) for statement in statements[:1]]
        rest = _without_comment(line.trailing_whitespace)
        for statement in statements[1:]:
            lines.append(line.with_changes(body=[statement], leading_lines=[], trailing_whitespace=rest))
        return tuple(lines)


def _ancestors(module: cst.Module, edits: Sequence[Edit]) -> set[cst.CSTNode]:
    parent_of = parents(module)
    found: set[cst.CSTNode] = set()
    for edit in edits:
        node = parent_of[edit.node]
        while node not in found:
            found.add(node)
            if node is module:
                break
            node = parent_of[node]
    return found


def _joined(old: Sequence[cst.BaseSmallStatement], new: Sequence[Nodes]) -> list[cst.CSTNode]:
    """Return the statements of one line; an old semicolon stays behind the last of what replaced its statement."""
    body: list[cst.CSTNode] = []
    for before, statements in zip(old, new):
        for place, statement in enumerate(statements):
            is_last = place == len(statements) - 1
            body.append(statement.with_changes(semicolon=before.semicolon if is_last else cst.MaybeSentinel.DEFAULT))
    if body and len(new[-1]) == 0:
        body[-1] = body[-1].with_changes(semicolon=old[-1].semicolon)
    return body


def _without_comment(trailing: cst.TrailingWhitespace) -> cst.TrailingWhitespace:
    comment = trailing.comment
    if comment is None or any(word in comment.value for word in _PRAGMAS):
        return trailing
    return trailing.with_changes(comment=None, whitespace=cst.SimpleWhitespace(""))
