"""A whole run: find the files, rewrite each, ask git, write."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import Callable, Iterator, Mapping, Sequence

from amp_migrate.rewrite.discover import DEFAULT_SELECTION, Found, Selection, find_files
from amp_migrate.rewrite.git import GitState, git_state, undo_commands
from amp_migrate.rewrite.jobs import processes_for
from amp_migrate.rewrite.partners import may_reexport, partners, reexported
from amp_migrate.rewrite.project import own_apex_module
from amp_migrate.rewrite.report import Report
from amp_migrate.rewrite.results import DEFAULT_SETTINGS, FileResult, Outcome, Result, Settings, WriteMode
from amp_migrate.rewrite.source import may_import_apex, rewrite_source
from amp_migrate.rewrite.write import replace_bytes

#: called with (files done, files in all)
OnProgress = Callable[[int, int], None]


def rewrite_paths(
    paths: Sequence[str],
    settings: Settings = DEFAULT_SETTINGS,
    *,
    mode: WriteMode = WriteMode.IN_PLACE,
    selection: Selection = DEFAULT_SELECTION,
    force: bool = False,
    jobs: int = 1,
    on_progress: OnProgress | None = None,
) -> Report:
    """Rewrite the files at and below ``paths`` and return what was done.

    Everything is decided before anything is written. With :attr:`WriteMode.IN_PLACE`, nothing at all is written if one
    of the files to change has uncommitted changes, unless ``force`` is given. A file that fails never stops the others.
    With ``jobs``, that many processes may share the files with Apex, if there are enough of them; the report is the
    same. Where processes can't be forked, a program that asks for several needs ``if __name__ == "__main__":``.
    """
    found = find_files(paths, selection)
    roots = [path for path in paths if os.path.isdir(path)]
    results = [*_not_looked_at(found), *_rewritten(found.files, settings, roots, jobs, on_progress)]
    unchanged = len(found.files) - (len(results) - len(found.problems) - len(found.skipped))
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
        yield _failed(path, reason)
    for path, reason in found.skipped:
        yield FileResult(path, Result(Outcome.SKIPPED, b"", reason=reason))


def _rewritten(
    files: Sequence[str], settings: Settings, roots: Sequence[str], jobs: int, on_progress: OnProgress | None
) -> list[FileResult]:
    """Return the results of all files but the unchanged ones, in the order of ``files``."""
    done: dict[str, FileResult] = {}
    candidates: dict[str, bytes] = {}
    mentions: dict[str, bytes] = {}
    for path in files:
        try:
            source = _read(path)
            if may_import_apex(source):
                candidates[path] = source
            if may_reexport(source):
                mentions[path] = source
        except OSError as error:
            done[path] = _failed(path, _reason(error))
    finished = len(files) - len(candidates)
    exported = reexported(mentions) if candidates else {}
    by_name = {path: exported[name] for path in candidates for name in [_module_name(path)] if name in exported}
    shared = {**by_name, **partners(candidates)}
    for result in _work(list(candidates), settings, roots, jobs, shared):
        finished += 1
        if result.result.outcome is not Outcome.UNCHANGED:
            done[result.path] = result
        if on_progress is not None:
            on_progress(finished, len(files))
    return [done[path] for path in files if path in done]


def _module_name(path: str) -> str:
    name = os.path.splitext(os.path.basename(path))[0]
    return os.path.basename(os.path.dirname(os.path.abspath(path))) if name == "__init__" else name


def _work(
    paths: Sequence[str], settings: Settings, roots: Sequence[str], jobs: int, shared: Mapping[str, str]
) -> Iterator[FileResult]:
    work = partial(_rewrite_file, settings=settings, roots=roots, shared=shared)
    processes = processes_for(len(paths), jobs)
    if processes == 1:
        return map(work, paths)
    from amp_migrate.rewrite.pool import in_order  # multiprocessing takes 20 ms to load

    return in_order(work, paths, processes, _failed)


def _rewrite_file(path: str, settings: Settings, roots: Sequence[str], shared: Mapping[str, str]) -> FileResult:
    try:
        source = _read(path)
    except OSError as error:
        return _failed(path, _reason(error))
    own_apex = own_apex_module(os.path.dirname(path), roots)
    if path in shared:
        settings = replace(settings, target=replace(settings.target, partner=shared[path]))
    result = rewrite_source(source, settings, own_apex=own_apex)
    return FileResult(path, result, before=source)


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _failed(path: str, reason: str) -> FileResult:
    return FileResult(path, Result(Outcome.FAILED, b"", reason=reason))


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _write(each: FileResult) -> FileResult:
    try:
        replace_bytes(each.path, each.result.source, expected=each.before)
    except OSError as error:
        reason = f"can't be written: {_reason(error)}"
        return replace(each, result=Result(Outcome.FAILED, each.before, reason=reason))
    return each
