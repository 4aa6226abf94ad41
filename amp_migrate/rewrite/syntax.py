"""Python's own parser without its warnings: a wrong escape in a user's string isn't our subject."""

from __future__ import annotations

import ast
import symtable
import warnings
from typing import Callable, TypeVar

T = TypeVar("T")
_NAME = "<source>"


def check_syntax(source: bytes) -> None:
    """Compile ``source``; raise what Python raises for what doesn't compile."""
    _quietly(lambda: compile(source, _NAME, "exec", dont_inherit=True))


def syntax_tree(source: bytes) -> ast.Module:
    """Return the tree of ``source``, which compiles: others could overflow the stack here."""
    return _quietly(lambda: ast.parse(source))


def symbol_table(source: bytes) -> symtable.SymbolTable:
    """Return the symbol table of ``source``, which compiles."""
    return _quietly(lambda: symtable.symtable(source, _NAME, "exec"))  # type: ignore[arg-type]  # bytes are fine


def _quietly(do: Callable[[], T]) -> T:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return do()
