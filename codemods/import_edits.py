"""Import statements as they read once some of their names come from the drop-in. Pure: statement in, statements out."""

from __future__ import annotations

from typing import Callable

import libcst as cst

from .dropin import APEX
from .name_lists import keep_only
from .tree import dotted_name

Moves = Callable[[cst.CSTNode], bool]


def redirected(name: cst.BaseExpression) -> cst.BaseExpression:
    """Return ``amp_migrate.apex.amp`` for ``apex.amp``, with the layout around the dots kept."""
    if isinstance(name, cst.Attribute):
        return name.with_changes(value=redirected(name.value))
    return cst.Attribute(cst.Name("amp_migrate"), cst.Name(APEX))


def whole_package(alias: cst.ImportAlias) -> cst.ImportAlias:
    """Return the alias that binds the drop-in to ``apex``, in the place of ``alias``."""
    name = cst.Attribute(cst.Name("amp_migrate"), cst.Name(APEX))
    return cst.ImportAlias(name=name, asname=cst.AsName(cst.Name(APEX)), comma=alias.comma)


def _none(alias: cst.CSTNode) -> bool:
    return False


def plain_import(statement: cst.Import, moves: Moves, goes: Moves = _none) -> cst.Import:
    """Return ``import …`` with the names that move taken from the drop-in, and without those that go.

    ``import apex.amp, apex.amp.handle`` binds ``apex`` twice. One import is enough: the drop-in loads what is below it
    when it's asked for.
    """
    aliases: list[cst.ImportAlias] = []
    package_is_bound = False
    for alias in statement.names:
        if goes(alias):
            continue
        if not moves(alias):
            aliases.append(alias)
        elif alias.asname is not None:
            aliases.append(alias.with_changes(name=redirected(alias.name)))
        elif not package_is_bound:
            package_is_bound = True
            aliases.append(whole_package(alias))
    if len(aliases) < len(statement.names):
        aliases[-1] = aliases[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return statement.with_changes(names=aliases)


def from_import(statement: cst.ImportFrom, moves: Moves, goes: Moves = _none) -> tuple[cst.ImportFrom, ...]:
    """Return ``from … import …`` with the names that move taken from the drop-in: one statement, or two.

    Names that go are left out; at least one must stay.

    The drop-in's comes first: if Apex isn't there, the names that no longer need it are bound before the other fails.
    """
    assert statement.module is not None
    there = statement.with_changes(module=redirected(statement.module))
    if isinstance(statement.names, cst.ImportStar):
        return (there,)
    moving = [moves(alias) and not goes(alias) for alias in statement.names]
    if all(moving):
        return (there,)
    staying = [not moves(alias) and not goes(alias) for alias in statement.names]
    if all(staying):
        return (statement,)
    parts = ((there, moving), (statement, staying))
    return tuple(keep_only(part, kept) for part, kept in parts if any(kept))


def binds_only_the_package(statement: cst.Import) -> bool:
    """Return whether ``statement`` is ``import amp_migrate.apex as apex`` and nothing else."""
    alias = statement.names[0]
    is_package = dotted_name(alias.name) == "amp_migrate.apex" and alias.asname is not None
    return len(statement.names) == 1 and is_package and alias.evaluated_alias == APEX
