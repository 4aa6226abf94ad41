"""AMP001: what the drop-in has is imported from the drop-in."""

from __future__ import annotations

from typing import Iterator, Sequence

import libcst as cst

from .dropin import APEX, DROPIN
from .dynamic_imports import DynamicImport
from .edits import Edit
from .findings import Level
from .import_edits import Moves, binds_only_the_package, from_import, plain_import
from .imports import ApexImport
from .registry import rule
from .source_file import SourceFile
from .tree import blocks


@rule("AMP001", "imports of Apex become imports of the drop-in", Level.SAFE)
def check(source: SourceFile) -> Iterator[Edit]:
    """
    Why: NVIDIA removed apex.amp in May 2025, and it fails on torch 1.10 and later. The drop-in, amp_migrate.apex, has
    the same names and does the same on torch's own AMP, so a program that only changes its imports runs again.

    Before:
        from apex import amp
        import apex.amp as mixed
        import apex

    After:
        from amp_migrate.apex import amp
        import amp_migrate.apex.amp as mixed
        import amp_migrate.apex as apex

    A list with names that the drop-in doesn't have is split: those stay on Apex (AMP002). The string in
    importlib.import_module("apex.amp") changes too; other strings, comments and docstrings never do.

    Safe: what the names stand for keeps its behaviour; the program then needs amp_migrate where it needed Apex.
    """
    moving = [verdict.site for verdict in source.verdicts if verdict.stays is None]
    edits = [*_static(moving, source.native.going), *_dynamic(moving)]
    yield from _without_repeats(source.module, edits)


def _static(moving: Sequence[object], going: frozenset[cst.CSTNode]) -> Iterator[Edit]:
    """``going`` are names that the native program no longer has; another rule takes out what is left empty."""
    sites = [site for site in moving if isinstance(site, ApexImport)]
    aliases = {site.node for site in sites}
    for statement in dict.fromkeys(site.statement for site in sites):
        if isinstance(statement, cst.Import):
            yield Edit(statement, (plain_import(statement, aliases.__contains__, going.__contains__),))
        else:
            yield Edit(statement, from_import(statement, aliases.__contains__, going.__contains__))


def _dynamic(moving: Sequence[object]) -> Iterator[Edit]:
    for call in moving:
        if isinstance(call, DynamicImport) and call.literal is not None:
            text = call.literal.value.replace(APEX, DROPIN, 1)
            yield Edit(call.literal, (call.literal.with_changes(value=text),))


def _without_repeats(module: cst.Module, edits: Sequence[Edit]) -> list[Edit]:
    """Drop statements that would only repeat ``import amp_migrate.apex as apex`` a few imports further down.

    ``import apex`` followed by ``import apex.amp`` would otherwise become the same line twice.
    """
    binds_package = {
        edit.node: edit
        for edit in edits
        if isinstance(edit.replacement[0], cst.Import) and binds_only_the_package(edit.replacement[0])
    }
    if len(binds_package) < 2:
        return list(edits)
    repeats: set[cst.CSTNode] = set()
    for lines in blocks(module):
        repeats.update(_repeats(lines, binds_package.__contains__))
    return [Edit(edit.node, ()) if edit.node in repeats else edit for edit in edits]


def _repeats(lines: Sequence[cst.BaseStatement], binds: Moves) -> Iterator[cst.CSTNode]:
    is_bound = False
    for line in lines:
        if not (isinstance(line, cst.SimpleStatementLine) and _only_imports(line)):
            is_bound = False
            continue
        for statement in line.body:
            if binds(statement):
                if is_bound and not _has_comment(line):
                    yield statement
                is_bound = True


def _only_imports(line: cst.SimpleStatementLine) -> bool:
    return all(isinstance(each, (cst.Import, cst.ImportFrom)) for each in line.body)


def _has_comment(line: cst.SimpleStatementLine) -> bool:
    return line.trailing_whitespace.comment is not None or any(each.comment for each in line.leading_lines)
