"""The names that a source reads, and what binds them, as Python's own symbol table has it."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections import defaultdict
from typing import Iterator, Mapping

from amp_migrate.rewrite.syntax import symbol_table, syntax_tree

_EVERY_MODULE = {"__file__", "__name__", "__doc__", "__spec__", "__loader__", "__package__", "__path__", "__builtins__"}
_DEFINED = frozenset({*dir(builtins), *_EVERY_MODULE, "__annotations__", "__class__", "__module__", "__qualname__"})
#: where a name may be bound. It is read from the innermost outwards.
LOCAL, ENCLOSING, GLOBAL = "local", "enclosing", "global"


def undefined_names(source: bytes) -> frozenset[str]:
    """Return the names that ``source`` reads and nothing in it binds; none after ``from x import *``."""
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(syntax_tree(source))):
        return frozenset()
    top = symbol_table(source)
    bound = {symbol.get_name() for symbol in top.get_symbols() if _binds(symbol)}
    read = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
    for table in _below(top):
        for symbol in table.get_symbols():
            if symbol.is_global():
                if symbol.is_referenced():
                    read.add(symbol.get_name())
                if symbol.is_declared_global() and _binds(symbol):
                    bound.add(symbol.get_name())
    return frozenset(read - bound - _DEFINED)


Reads = Mapping[str, str]


def reads_by_function(source: bytes) -> Mapping[tuple[str, ...], tuple[Reads, ...]]:
    """Return, for the functions and classes of each dotted path, the names that each reads and where they are bound.

    Several of one path, as a function defined twice, are in source order.
    """
    found: dict[tuple[str, ...], list[Reads]] = defaultdict(list)
    waiting: list[tuple[tuple[str, ...], symtable.SymbolTable]] = [((), symbol_table(source))]
    while waiting:
        path, table = waiting.pop()
        for child in table.get_children():
            name = child.get_name()
            if child.get_type() not in ("function", "class") or not name.isidentifier() or name in _NAMELESS:
                continue  # what has no name can't be found again
            below = (*path, name)
            found[below].append({each.get_name(): _home(each) for each in child.get_symbols() if each.is_referenced()})
            waiting.append((below, child))
    return {path: tuple(each) for path, each in found.items()}


_NAMELESS = frozenset({"lambda", "genexpr", "listcomp", "setcomp", "dictcomp"})


def _home(symbol: symtable.Symbol) -> str:
    if symbol.is_global():
        return GLOBAL
    return ENCLOSING if symbol.is_free() else LOCAL


def _binds(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()


def _below(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    waiting = list(table.get_children())
    while waiting:
        child = waiting.pop()
        yield child
        waiting.extend(child.get_children())
