"""The words of the command: a line per file, a line per place left, a summary. Plain text, the same in a pipe."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Iterator, Mapping, TextIO

from amp_migrate.rewrite.diff import file_diff
from amp_migrate.rewrite.report import Report
from amp_migrate.rewrite.results import Outcome, WriteMode

#: in the order of the summary
_COUNTED = (
    (Outcome.CHANGED, "changed"),
    (Outcome.UNCHANGED, "unchanged"),
    (Outcome.NEEDS_PERSON, "left for a person"),
    (Outcome.SKIPPED, "skipped"),
    (Outcome.FAILED, "failed"),
)


def print_report(report: Report) -> None:
    """Print results to stdout, failures to stderr. With --diff, stdout has only the diff, ready to apply."""
    talk = sys.stderr if report.mode is WriteMode.DIFF else sys.stdout
    if report.mode is WriteMode.DIFF:
        colour = wants_colour(sys.stdout)
        for each in report.ended(Outcome.CHANGED):
            put_bytes(sys.stdout, file_diff(each.path, each.before, each.result.source, colour))
    put(talk, _file_lines(report))
    put(sys.stderr, _failures(report))
    put(talk, _summary(report))


def _file_lines(report: Report) -> Iterator[str]:
    changed = "changed" if report.mode is WriteMode.IN_PLACE and not report.is_refused else "would change"
    for each in report.results:
        if each.result.outcome is Outcome.CHANGED:
            yield f"{changed} {each.path}  {_by_rule(each.result.edits)}"
        elif each.result.outcome is Outcome.SKIPPED:
            yield f"skipped {each.path}: {each.result.reason}"
        is_written = changed == "changed" and each.result.outcome is Outcome.CHANGED
        for finding in each.result.findings_after if is_written else each.result.findings:
            yield f"{each.path}:{finding}"


def _failures(report: Report) -> Iterator[str]:
    for each in report.ended(Outcome.FAILED):
        yield f"error: {each.path}: {each.result.reason}"
    if report.git_problem:
        yield f"error: nothing was written: git doesn't say whether the files are committed: {report.git_problem}"
        yield "Solve that, or write all the same with --force."
    if report.refused:
        yield "error: nothing was written: these files have changes that git couldn't bring back:"
        yield from (f"  {path}" for path in report.refused)
        yield "Commit or stash them first, or write all the same with --force."


def _summary(report: Report) -> Iterator[str]:
    word = "" if report.mode is WriteMode.IN_PLACE and not report.is_refused else "would be "
    counts = [(report.count(outcome), name) for outcome, name in _COUNTED]
    first = f"{counts[0][0]} {'file' if counts[0][0] == 1 else 'files'} {word}changed"
    yield ", ".join([first, *(f"{count} {name}" for count, name in counts[1:])]) + "."
    if report.edits:
        yield f"Places {word}changed: {_by_rule(report.edits)}."
    if report.findings:
        yield f"Places left for a person: {_by_rule(report.findings)} (--explain CODE says more)."
    if report.folders_left_out or report.files_left_out:
        yield (
            f"Left out: {_count(report.folders_left_out, 'folder')} and {_count(report.files_left_out, 'file')}"
            " (virtual environments, build results, ignored or excluded)."
        )
    for what, command in report.undo.items():
        yield f"To {what}: {command}"


def _by_rule(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{code} ×{count}" for code, count in sorted(counts.items()))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


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
