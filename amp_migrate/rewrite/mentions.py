"""Whether a source imports Apex, asked of Python's own parser: much cheaper than LibCST's."""

from __future__ import annotations

import ast
import re

from amp_migrate.codemods.target import SHIM
from amp_migrate.rewrite.syntax import syntax_tree

_APEX = re.compile(r"apex\b")
_APEX_OR_DROPIN = re.compile(r"(amp_migrate\.)?apex\b")


def imports_apex(source: bytes, to: str) -> bool:
    """Return False if ``source``, which compiles, has Apex in comments and texts only.

    The drop-in counts as Apex unless the drop-in is what to rewrite to: an earlier run may have left a file on it. A
    string that begins with Apex counts, because it may be imported by it.
    """
    apex = _APEX if to == SHIM else _APEX_OR_DROPIN
    return any(_is_import(node, apex) for node in ast.walk(syntax_tree(source)))


def _is_import(node: ast.AST, apex: re.Pattern[str]) -> bool:
    if isinstance(node, ast.Import):
        return any(apex.match(alias.name) for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return not node.level and any(apex.match(f"{node.module}.{alias.name}") for alias in node.names)
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and apex.match(node.value) is not None
