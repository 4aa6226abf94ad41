"""What becomes of comments and blank lines when the statement that they stand at goes."""

from __future__ import annotations

from typing import Sequence

import libcst as cst

#: comments that speak to a tool about the line that they stand on, and so say nothing without it
_PRAGMAS = ("noqa", "type:", "pylint:", "pragma:", "isort:", "ruff:", "fmt:", "nosec", "pyright:", "mypy:")


def is_pragma(comment: cst.Comment | None) -> bool:
    """Return whether ``comment`` is an instruction to a tool."""
    return comment is not None and any(word in comment.value for word in _PRAGMAS)


def comment_line(trailing: cst.TrailingWhitespace) -> list[cst.EmptyLine]:
    """Return the comment behind a removed statement as a line of its own, if there is one."""
    if trailing.comment is None or is_pragma(trailing.comment):
        return []
    return [cst.EmptyLine(comment=trailing.comment, newline=trailing.newline)]


def carried_lines(removed: cst.CSTNode) -> list[cst.EmptyLine]:
    """Return the lines of ``removed`` that stay: those above it, and the comment behind it."""
    lines: list[cst.EmptyLine] = [line for line in getattr(removed, "leading_lines", ()) if not is_pragma(line.comment)]
    if isinstance(removed, cst.SimpleStatementLine):
        lines += comment_line(removed.trailing_whitespace)
    return lines


def joined_lines(first: Sequence[cst.EmptyLine], second: Sequence[cst.EmptyLine]) -> list[cst.EmptyLine]:
    """Return both, with no more blank lines where they meet than the longer of the two runs has."""
    lines = list(first)
    blank_at_end = 0
    while blank_at_end < len(lines) and lines[-1 - blank_at_end].comment is None:
        blank_at_end += 1
    blank_at_start = 0
    while blank_at_start < len(second) and second[blank_at_start].comment is None:
        blank_at_start += 1
    drop = min(blank_at_end, blank_at_start)
    return [*lines[: len(lines) - drop], *second]


def without_comment(trailing: cst.TrailingWhitespace) -> cst.TrailingWhitespace:
    """Return ``trailing`` with its line end alone."""
    if trailing.comment is None:
        return trailing
    return trailing.with_changes(comment=None, whitespace=cst.SimpleWhitespace(""))


def without_blank_start(lines: Sequence[cst.EmptyLine]) -> list[cst.EmptyLine]:
    """Return ``lines`` without the blank ones at their beginning."""
    place = 0
    while place < len(lines) and lines[place].comment is None:
        place += 1
    return list(lines[place:])
