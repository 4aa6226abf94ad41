"""The edits of a native program while it's put together, each with the code of the rule it belongs to."""

from __future__ import annotations

from typing import Sequence

import libcst as cst

from ..edits import AnyEdit, Append, Edit, Insert, Site, Unwrap, Wrap
from ..findings import Kind
from ..layout import Item
from .index import Index


class Draft:
    """Collects edits and notes. Nothing is changed until the engine applies them."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.edits: list[tuple[str, AnyEdit]] = []
        self.sites: list[tuple[str, Site]] = []
        #: expressions of Apex that the native program no longer has
        self.converted: set[cst.CSTNode] = set()
        #: small statements that go without a replacement
        self.removed: dict[cst.CSTNode, str] = {}
        #: compound statements that go as a whole
        self.removed_blocks: dict[cst.CSTNode, str] = {}
        #: blocks that are left out because the other branch stays
        self.dropped: set[cst.CSTNode] = set()

    def replace(self, code: str, node: cst.CSTNode, *nodes: cst.CSTNode) -> None:
        """Put ``nodes`` in the place of ``node``."""
        self.edits.append((code, Edit(node, tuple(nodes))))

    def before(self, code: str, anchor: cst.CSTNode, *statements: cst.CSTNode) -> None:
        """Put ``statements`` before ``anchor``, a small or compound statement."""
        self.edits.append((code, Insert(anchor, before=tuple(statements))))

    def after(self, code: str, anchor: cst.CSTNode, *statements: cst.CSTNode) -> None:
        """Put ``statements`` behind ``anchor``."""
        self.edits.append((code, Insert(anchor, after=tuple(statements))))

    def wrap(self, code: str, first: cst.BaseStatement, last: cst.BaseStatement, header: cst.With | cst.If) -> None:
        """Put the lines from ``first`` to ``last`` under ``header``."""
        self.edits.append((code, Wrap(first, last, header)))

    def unwrap(self, code: str, node: cst.BaseCompoundStatement, body: cst.BaseSuite) -> None:
        """Put the statements of ``body`` in the place of ``node``."""
        self.edits.append((code, Unwrap(node, body)))

    def append(self, code: str, node: cst.Call | cst.Parameters | cst.Tuple | cst.FunctionDef, item: Item) -> None:
        """Add an argument, a parameter, an element or a decorator."""
        self.edits.append((code, Append(node, item)))

    def remove(self, code: str, small: cst.CSTNode) -> None:
        """Let a small statement go."""
        self.removed[small] = code

    def note(self, code: str, node: cst.CSTNode, message: str, advice: str = "", kind: Kind = Kind.NOTE) -> None:
        """Tell of a place."""
        self.sites.append((code, Site(node, message, advice, kind=kind)))

    def is_gone(self, node: cst.CSTNode) -> bool:
        """Return whether ``node`` stands in what is removed or dropped."""
        gone = self.dropped
        return any(
            each in gone or each in self.removed_blocks or each in self.removed
            for each in (node, *self.index.ancestors(node))
        )

    def finished(self) -> list[tuple[str, AnyEdit]]:
        """Return the edits, without those in what goes, and with compound statements that became empty removed."""
        self._remove_empty()
        edits = [(code, edit) for code, edit in self.edits if not self._is_lost(edit)]
        for small, code in self.removed.items():
            if not any(self._is_inside_gone(outer) for outer in self.index.ancestors(small)):
                edits.append((code, Edit(small, ())))
        for block, code in self.removed_blocks.items():
            if not any(self._is_inside_gone(outer) for outer in self.index.ancestors(block)):
                edits.append((code, Edit(block, ())))
        return edits

    def _is_inside_gone(self, node: cst.CSTNode) -> bool:
        return node in self.dropped or node in self.removed_blocks

    def _is_lost(self, edit: AnyEdit) -> bool:
        if isinstance(edit, Insert):
            return any(self._is_inside_gone(outer) for outer in self.index.ancestors(edit.anchor))
        if isinstance(edit, Wrap):
            return self.is_gone(edit.first)
        return self.is_gone(edit.node)

    def _remove_empty(self) -> None:
        """A block whose statements all go takes its ``if``, ``try`` or ``with`` along."""
        changed = True
        while changed:
            changed = False
            for small in [*self.removed, *self.removed_blocks]:
                line = self.index.line(small)
                block = self.index.block(line)
                owner = self.index.parent.get(block)
                if owner is None or owner in self.removed_blocks or not self._is_empty(list(block.body)):
                    continue
                if (isinstance(owner, cst.If) and self._can_go(owner)) or isinstance(owner, cst.Else):
                    self.removed_blocks[owner] = "AMP110"
                    changed = True

    def _is_empty(self, lines: Sequence[cst.CSTNode]) -> bool:
        inserted = {edit.anchor for _, edit in self.edits if isinstance(edit, Insert)}
        for line in lines:
            smalls = line.body if isinstance(line, cst.SimpleStatementLine) else [line]
            for small in smalls:
                if small in inserted or line in inserted:
                    return False
                if small not in self.removed and small not in self.removed_blocks:
                    return False
        return True

    def _can_go(self, node: cst.If) -> bool:
        is_elif = isinstance(self.index.parent.get(node), cst.If)
        return node.orelse is None and not is_elif and not _has_effects(node.test)


def _has_effects(test: cst.BaseExpression) -> bool:
    from ..tree import walk

    return any(isinstance(each, (cst.Call, cst.NamedExpr, cst.Await, cst.Yield)) for each in walk(test))
