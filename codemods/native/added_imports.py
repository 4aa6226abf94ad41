"""Imports that the native program is the first to need."""

from __future__ import annotations

from typing import Collection, Sequence

import libcst as cst

from ..edits import AnyEdit, Insert
from .spelling import statement


def add_imports(module: cst.Module, lines: Sequence[str], going: Collection[cst.CSTNode]) -> list[tuple[str, AnyEdit]]:
    """Return the edit that adds import statements: where an import of Apex goes, else above all other imports.

    ``going`` are the statements that go.
    """
    if not lines:
        return []
    statements = tuple(statement(line) for line in lines)
    anchor: cst.CSTNode | None = None
    for line in module.body:
        if isinstance(line, cst.SimpleStatementLine) and line.body[0] in going:
            return [("AMP101", Insert(line.body[0], before=statements))]
    for line in module.body:
        first = line.body[0] if isinstance(line, cst.SimpleStatementLine) else line
        if _is_header(first):
            continue
        anchor = first
        break
    if anchor is None:
        return []
    return [("AMP101", Insert(anchor, before=statements))]


def _is_header(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Expr) and isinstance(node.value, (cst.SimpleString, cst.ConcatenatedString)):
        return True
    if isinstance(node, cst.ImportFrom) and isinstance(node.module, cst.Name):
        return node.module.value == "__future__"
    return False
