"""The import statements of a file that bring in Apex or parts of it, as facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator

import libcst as cst

from .dropin import DROPIN, path_below_apex
from .scopes import ImportStatement, Names, Scope, bound_name
from .tree import dotted_name

STAR = "*"


@dataclass(frozen=True)
class ApexImport:
    """One name that an import statement brings in.

    ``imported`` is the path below ``apex`` that is imported. ``binds`` is the local name, and ``stands_for`` the path
    that it stands for: ``import apex.amp`` imports ``amp`` and binds ``apex``, which stands for ``""``, the package.
    """

    statement: ImportStatement
    node: cst.CSTNode
    imported: str
    stands_for: str
    binds: str
    scope: Scope
    #: whether it is an import of the drop-in already
    is_moved: bool = False

    @property
    def text(self) -> str:
        """The import of this one name, as Python would spell it."""
        if isinstance(self.statement, cst.Import):
            return f"import {_below('apex', self.imported)}"
        module, _, name = _below("apex", self.imported).rpartition(".")
        return f"from {module} import {name}"


def apex_imports(names: Names, moved: bool = False) -> tuple[ApexImport, ...]:
    """Return what the file imports from Apex. Relative imports, and other packages' ``apex``, aren't Apex.

    With ``moved``, imports of the drop-in count as well: an earlier run has left them.
    """
    found: list[ApexImport] = []
    for statement, scope in names.imports:
        found.extend(_plain(statement, scope) if isinstance(statement, cst.Import) else _from(statement, scope))
        if moved:
            found.extend(_moved(statement, scope))
    return tuple(found)


def _moved(statement: ImportStatement, scope: Scope) -> Iterator[ApexImport]:
    if isinstance(statement, cst.Import):
        for alias in statement.names:
            path = _path_below_dropin(dotted_name(alias.name))
            if path is not None and alias.asname is not None:
                yield ApexImport(statement, alias, path, path, bound_name(alias), scope, True)
        return
    if statement.relative or statement.module is None or isinstance(statement.names, cst.ImportStar):
        return
    module = dotted_name(statement.module)
    for alias in statement.names:
        path = _path_below_dropin(f"{module}.{dotted_name(alias.name)}")
        if path is not None:
            yield ApexImport(statement, alias, path, path, bound_name(alias), scope, True)


def _path_below_dropin(dotted: str) -> str | None:
    if dotted == DROPIN:
        return ""
    return dotted[len(DROPIN) + 1 :] if dotted.startswith(f"{DROPIN}.") else None


def _plain(statement: cst.Import, scope: Scope) -> Iterator[ApexImport]:
    for alias in statement.names:
        path = path_below_apex(dotted_name(alias.name))
        if path is not None:
            stands_for = path if alias.asname is not None else ""
            yield ApexImport(statement, alias, path, stands_for, bound_name(alias), scope)


def _from(statement: cst.ImportFrom, scope: Scope) -> Iterator[ApexImport]:
    module = _apex_module(statement)
    if module is None:
        return
    if isinstance(statement.names, cst.ImportStar):
        yield ApexImport(statement, statement.names, _below(module, STAR), _below(module, STAR), "", scope)
        return
    for alias in statement.names:
        path = _below(module, dotted_name(alias.name))
        yield ApexImport(statement, alias, path, path, bound_name(alias), scope)


def _apex_module(statement: cst.ImportFrom) -> str | None:
    if statement.relative or statement.module is None:
        return None
    return path_below_apex(dotted_name(statement.module))


def _below(module: str, name: str) -> str:
    return f"{module}.{name}" if module and name else module or name
