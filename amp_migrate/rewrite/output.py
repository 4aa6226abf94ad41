"""Where a report goes: to stdout, beside a diff to stderr, or to a file."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from typing import Iterator, TextIO

from amp_migrate.rewrite.diff import file_diff
from amp_migrate.rewrite.report import Report
from amp_migrate.rewrite.results import Outcome, WriteMode


@dataclass(frozen=True)
class Style:
    """How to report. ``review_command``: what to run for ``--level review``."""

    format: str = "text"
    output: str | None = None
    review_command: str = ""


class ReportNotWritten(Exception):
    """The file for the report can't be written. The message names it and says why."""


def report_lines(report: Report, style: Style) -> Iterator[str]:
    """Return the lines of the report in the wanted format."""
    if style.format == "json":
        from amp_migrate.rewrite.json_report import json_report

        return json_report(report)
    if style.format == "github":
        from amp_migrate.rewrite.github import github_report

        return github_report(report)
    from amp_migrate.rewrite.text import text_report

    return text_report(report, style.review_command)


def print_report(report: Report, style: Style) -> None:
    """Print the report, and failures to stderr as well. With --diff, stdout has only the diff, ready to apply.

    Raises :class:`ReportNotWritten` if the file for the report can't be written.
    """
    talk = sys.stderr if report.mode is WriteMode.DIFF else sys.stdout
    if report.mode is WriteMode.DIFF:
        colour = wants_colour(sys.stdout)
        for each in report.ended(Outcome.CHANGED):
            put_bytes(sys.stdout, file_diff(each.path, each.before, each.result.source, colour))
    print_words(report, style, talk)


def print_words(report: Report, style: Style, talk: TextIO) -> None:
    """Put the report into its file or print it to ``talk``, and print what went wrong to stderr."""
    from amp_migrate.rewrite.text import failure_lines

    if style.output is None:
        put(talk, report_lines(report, style))
    else:
        from amp_migrate.rewrite.write import write_bytes

        lines = [*report_lines(report, style), *(failure_lines(report) if style.format == "text" else ())]
        try:
            write_bytes(style.output, "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
        except OSError as error:
            put(sys.stderr, failure_lines(report))
            raise ReportNotWritten(f"{style.output}: {error.strerror or error}") from error
    put(sys.stderr, failure_lines(report))


def wants_colour(stream: TextIO) -> bool:
    """Return whether ``stream`` is a terminal that may be sent colours. https://no-color.org"""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def put(stream: TextIO, lines: Iterator[str]) -> None:
    """Write lines of text, whatever the stream can encode: paths needn't be valid in any encoding."""
    text = "".join(f"{line}\n" for line in lines)
    put_bytes(stream, _encoded(text, stream.encoding or "utf-8"))


def _encoded(text: str, encoding: str) -> bytes:
    for attempt in (text, text.replace("×", "x")):
        with contextlib.suppress(UnicodeEncodeError):
            return attempt.encode(encoding, "surrogateescape")
    return text.replace("×", "x").encode(encoding, "backslashreplace")


def put_bytes(stream: TextIO, data: bytes) -> None:
    """Write bytes as they are."""
    stream.flush()
    stream.buffer.write(data)
    stream.flush()
