"""A whole run: find the files, rewrite each, ask git, write."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Iterator, Sequence

from amp_migrate.rewrite.discover import DEFAULT_SELECTION, Found, Selection, find_files
from amp_migrate.rewrite.git import GitState, git_state, undo_commands
from amp_migrate.rewrite.project import own_apex_module
from amp_migrate.rewrite.report import Report
from amp_migrate.rewrite.results import DEFAULT_SETTINGS, FileResult, Outcome, Result, Settings, WriteMode
from amp_migrate.rewrite.source import may_import_apex, rewrite_source
from amp_migrate.rewrite.write import replace_bytes


def rewrite_paths(
    paths: Sequence[str],
    settings: Settings = DEFAULT_SETTINGS,
    *,
    mode: WriteMode = WriteMode.IN_PLACE,
    selection: Selection = DEFAULT_SELECTION,
    force: bool = False,
) -> Report:
    """Rewrite the files at and below ``paths`` and return what was done.

    Everything is decided before anything is written. With :attr:`WriteMode.IN_PLACE`, nothing at all is written if one
    of the files to change has uncommitted changes, unless ``force`` is given. A file that fails never stops the others.
    """
    found = find_files(paths, selection)
    roots = [path for path in paths if os.path.isdir(path)]
    results = [*_not_looked_at(found)]
    unchanged = 0
    for path in found.files:
        result = _rewrite_file(path, settings, roots)
        if result.result.outcome is Outcome.UNCHANGED:
            unchanged += 1
        else:
            results.append(result)
    git = GitState()
    if mode is WriteMode.IN_PLACE:
        git = git_state([each.path for each in results if each.result.outcome is Outcome.CHANGED])
        if force:
            git = replace(git, dirty=(), problem="")
        if not (git.dirty or git.problem):
            results = [_write(each) if each.result.outcome is Outcome.CHANGED else each for each in results]
    written = [each.path for each in results if each.result.outcome is Outcome.CHANGED and each.path in git.tracked]
    return Report(
        mode,
        tuple(results),
        unchanged,
        found.folders_left_out,
        found.files_left_out,
        refused=git.dirty,
        git_problem=git.problem,
        undo={} if git.dirty or git.problem else undo_commands(written),
    )


def _not_looked_at(found: Found) -> Iterator[FileResult]:
    for path, reason in found.problems:
        yield FileResult(path, Result(Outcome.FAILED, b"", reason=reason))
    for path, reason in found.skipped:
        yield FileResult(path, Result(Outcome.SKIPPED, b"", reason=reason))


def _rewrite_file(path: str, settings: Settings, roots: Sequence[str]) -> FileResult:
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        return FileResult(path, Result(Outcome.FAILED, b"", reason=error.strerror or str(error)))
    if not may_import_apex(source):
        return FileResult(path, Result(Outcome.UNCHANGED, source))
    own_apex = own_apex_module(os.path.dirname(path), roots)
    return FileResult(path, rewrite_source(source, settings, own_apex=own_apex), before=source)


def _write(each: FileResult) -> FileResult:
    try:
        replace_bytes(each.path, each.result.source, expected=each.before)
    except OSError as error:
        reason = f"can't be written: {error.strerror or error}"
        return replace(each, result=Result(Outcome.FAILED, each.before, reason=reason))
    return each
