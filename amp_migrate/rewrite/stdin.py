"""``-``: one source from stdin, the result on stdout, everything that is said on stderr."""

from __future__ import annotations

import os
import sys
from typing import Iterator

from amp_migrate.rewrite.diff import file_diff
from amp_migrate.rewrite.output import Style, print_words, put, put_bytes, wants_colour
from amp_migrate.rewrite.project import own_apex_module
from amp_migrate.rewrite.report import Report
from amp_migrate.rewrite.results import FileResult, Outcome, Settings, WriteMode
from amp_migrate.rewrite.source import rewrite_source


def rewrite_stdin(name: str | None, settings: Settings, mode: WriteMode, style: Style, strict: bool = False) -> int:
    """Rewrite stdin and return the exit code. After a failure nothing is written to stdout, so nothing half is used.

    As text, only findings and failures are said: the rest is on stdout. Raises
    :class:`~amp_migrate.rewrite.output.ReportNotWritten` if the file for the report can't be written.
    """
    shown = name or "<stdin>"
    source = sys.stdin.buffer.read()
    own_apex = own_apex_module(os.path.dirname(name or ""), ())
    result = rewrite_source(source, settings, own_apex=own_apex)
    each = FileResult(shown, result, source)
    is_listed = result.outcome is not Outcome.UNCHANGED
    report = Report(mode, (each,) if is_listed else (), int(not is_listed), strict=strict)
    if mode is WriteMode.DIFF:
        put_bytes(sys.stdout, file_diff(shown, source, result.source, wants_colour(sys.stdout)))
    elif mode is WriteMode.IN_PLACE and result.outcome is not Outcome.FAILED:
        put_bytes(sys.stdout, result.source)
    if style.format == "text" and style.output is None:
        put(sys.stderr, _remarks(report))
    else:
        print_words(report, style, sys.stderr)
    return report.exit_code


def _remarks(report: Report) -> Iterator[str]:
    from amp_migrate.rewrite.text import failure_lines, finding_line

    yield from failure_lines(report)
    for each in report.results:
        if each.result.outcome is Outcome.SKIPPED:
            yield f"skipped: {each.path}: {each.result.reason}"
        for finding in report.findings_now(each):
            yield finding_line(each.path, finding)
