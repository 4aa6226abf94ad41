"""``-``: one source from stdin, the result on stdout, everything that is said on stderr."""

from __future__ import annotations

import os
import sys
from typing import Iterator

from amp_migrate.rewrite.diff import file_diff
from amp_migrate.rewrite.output import put, put_bytes, wants_colour
from amp_migrate.rewrite.project import own_apex_module
from amp_migrate.rewrite.report import Report
from amp_migrate.rewrite.results import FileResult, Outcome, Settings, WriteMode
from amp_migrate.rewrite.source import rewrite_source


def rewrite_stdin(name: str | None, settings: Settings, mode: WriteMode) -> int:
    """Rewrite stdin and return the exit code. After a failure nothing is written to stdout, so nothing half is used."""
    shown = name or "<stdin>"
    source = sys.stdin.buffer.read()
    own_apex = own_apex_module(os.path.dirname(name or ""), ())
    result = rewrite_source(source, settings, own_apex=own_apex)
    put(sys.stderr, _remarks(FileResult(shown, result)))
    if mode is WriteMode.DIFF:
        put_bytes(sys.stdout, file_diff(shown, source, result.source, wants_colour(sys.stdout)))
    elif mode is WriteMode.IN_PLACE and result.outcome is not Outcome.FAILED:
        put_bytes(sys.stdout, result.source)
    return Report(mode, (FileResult(shown, result, source),)).exit_code


def _remarks(each: FileResult) -> Iterator[str]:
    if each.result.reason:
        kind = "error" if each.result.outcome is Outcome.FAILED else "skipped"
        yield f"{kind}: {each.path}: {each.result.reason}"
    for finding in each.result.findings:
        yield f"{each.path}:{finding}"
