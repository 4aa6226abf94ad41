"""Taking some names out of a ``from … import`` list while the rest keep their lines and comments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import libcst as cst

Lines = cst.ParenthesizedWhitespace
_END_OF_LINE = cst.TrailingWhitespace()


@dataclass(frozen=True)
class _Item:
    """A name, with the comment lines above it, what follows its comma on its own line, and its indentation.

    ``indent`` is None for a name that doesn't stand first on its line.
    """

    alias: cst.ImportAlias
    above: tuple[cst.EmptyLine, ...]
    indent: Lines | None
    rest_of_line: cst.TrailingWhitespace


def keep_only(statement: cst.ImportFrom, kept: Sequence[bool]) -> cst.ImportFrom:
    """Return ``statement`` with only the names for which ``kept`` is true (at least one)."""
    assert not isinstance(statement.names, cst.ImportStar)
    items = [item for item, wanted in zip(_items(statement), kept) if wanted]
    if statement.lpar is None or (len(items) == 1 and not _has_comment(items[0])):
        return statement.with_changes(names=_on_one_line(items), lpar=None, rpar=None, **_space_for(statement))
    return _in_parentheses(statement, items)


def _items(statement: cst.ImportFrom) -> list[_Item]:
    assert not isinstance(statement.names, cst.ImportStar)
    items = []
    gap = statement.lpar.whitespace_after if statement.lpar is not None else cst.SimpleWhitespace("")
    for alias in statement.names:
        after = _after(alias, statement)
        rest = after.first_line if isinstance(after, Lines) else _END_OF_LINE
        above = tuple(gap.empty_lines) if isinstance(gap, Lines) else ()
        indent = gap if isinstance(gap, Lines) else None
        items.append(_Item(alias, above, indent, rest))
        gap = after
    return items


def _after(alias: cst.ImportAlias, statement: cst.ImportFrom) -> cst.BaseParenthesizableWhitespace:
    """Return the space between ``alias`` with its comma and what follows: the next name or the parenthesis."""
    if isinstance(alias.comma, cst.Comma):
        return alias.comma.whitespace_after
    return statement.rpar.whitespace_before if statement.rpar is not None else cst.SimpleWhitespace("")


def _has_comment(item: _Item) -> bool:
    return item.rest_of_line.comment is not None or any(line.comment for line in item.above)


def _on_one_line(items: Sequence[_Item]) -> list[cst.ImportAlias]:
    last = len(items) - 1
    space = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return [
        item.alias.with_changes(comma=space if place < last else cst.MaybeSentinel.DEFAULT)
        for place, item in enumerate(items)
    ]


def _space_for(statement: cst.ImportFrom) -> dict[str, cst.CSTNode]:
    """``import(amp, parallel)`` needs a space once its parentheses go."""
    before_list = statement.whitespace_after_import
    return {} if before_list.value else {"whitespace_after_import": cst.SimpleWhitespace(" ")}


def _in_parentheses(statement: cst.ImportFrom, items: Sequence[_Item]) -> cst.ImportFrom:
    assert statement.lpar is not None and statement.rpar is not None
    assert not isinstance(statement.names, cst.ImportStar)
    closing = _closing(_after(statement.names[-1], statement), items[-1])
    gaps = [_gap(before.rest_of_line, item) for before, item in zip(items, items[1:])]
    commas = [cst.Comma(whitespace_after=gap) for gap in (*gaps, closing)]
    aliases = [item.alias.with_changes(comma=comma) for item, comma in zip(items, commas)]
    rpar = statement.rpar
    if not isinstance(statement.names[-1].comma, cst.Comma):
        aliases[-1] = aliases[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        rpar = rpar.with_changes(whitespace_before=closing)
    lpar = statement.lpar.with_changes(whitespace_after=_opening(statement.lpar.whitespace_after, items[0]))
    return statement.with_changes(names=aliases, lpar=lpar, rpar=rpar)


def _opening(opening: cst.BaseParenthesizableWhitespace, first: _Item) -> cst.BaseParenthesizableWhitespace:
    """Return what follows the parenthesis: its own comment stays, then the lines above the first name left."""
    if isinstance(opening, Lines):
        return (first.indent or opening).with_changes(first_line=opening.first_line, empty_lines=first.above)
    if any(line.comment for line in first.above):
        return _gap(_END_OF_LINE, first)
    return opening


def _gap(rest_of_line: cst.TrailingWhitespace, following: _Item) -> cst.BaseParenthesizableWhitespace:
    if following.indent is not None:
        return following.indent.with_changes(first_line=rest_of_line, empty_lines=following.above)
    return cst.SimpleWhitespace(" ") if rest_of_line.comment is None else _new_line(rest_of_line)


def _closing(end: cst.BaseParenthesizableWhitespace, last: _Item) -> cst.BaseParenthesizableWhitespace:
    if isinstance(end, Lines):
        return end.with_changes(first_line=last.rest_of_line)
    return end if last.rest_of_line.comment is None else _new_line(last.rest_of_line)


def _new_line(rest_of_line: cst.TrailingWhitespace) -> Lines:
    """A comment ends its line, whatever the layout was before."""
    return Lines(first_line=rest_of_line, indent=True, last_line=cst.SimpleWhitespace("    "))
