"""The report as text: a line per file, a line per place, a table and a summary. The same in a pipe."""

from __future__ import annotations

from typing import Iterator, Mapping

from amp_migrate.codemods.findings import Finding, Kind
from amp_migrate.rewrite.report import Report
from amp_migrate.rewrite.results import Outcome, WriteMode

#: in the order of the summary
_COUNTED = (
    (Outcome.CHANGED, "changed"),
    (Outcome.UNCHANGED, "unchanged"),
    (Outcome.NEEDS_PERSON, "left as is"),
    (Outcome.SKIPPED, "skipped"),
    (Outcome.FAILED, "failed"),
)
_COLUMNS = ("", "native", "on the drop-in", "for a person")


def text_report(report: Report, review_command: str = "") -> Iterator[str]:
    """Yield the lines of the report, without failures. ``review_command`` is what to run for ``--level review``."""
    yield from _file_lines(report)
    yield from (f"note: {note}" for note in report.notes)
    yield from _table(report)
    yield from _summary(report)
    yield from _review(report, review_command)


def failure_lines(report: Report) -> Iterator[str]:
    """Yield what went wrong, and what to do about it."""
    for each in report.ended(Outcome.FAILED):
        yield f"error: {each.path}: {each.result.reason}"
    if report.git_problem:
        yield f"error: nothing was written: git doesn't say whether the files are committed: {report.git_problem}"
        yield "Solve that, or write all the same with --force."
    if report.refused:
        yield "error: nothing was written: these files have changes that git couldn't bring back:"
        yield from (f"  {path}" for path in report.refused)
        yield "Commit or stash them first, or write all the same with --force."


def finding_line(path: str, finding: Finding) -> str:
    """Return ``path:line:col CODE what. What to do.``"""
    place, code, message = str(finding).split(" ", 2)
    word = "note: " if finding.kind is Kind.NOTE else ""
    return f"{path}:{place} {code} {word}{message}"


def by_rule(counts: Mapping[str, int]) -> str:
    """Return counts as ``AMP001 ×3, AMP101 ×1``."""
    return ", ".join(f"{code} ×{count}" for code, count in sorted(counts.items()))


def _file_lines(report: Report) -> Iterator[str]:
    for each in report.results:
        if each.result.outcome is Outcome.CHANGED:
            word = "changed" if report.is_written(each) else "would change"
            yield f"{word} {each.path}  {by_rule(each.result.edits)}"
        elif each.result.outcome is Outcome.SKIPPED:
            yield f"skipped {each.path}: {each.result.reason}"
        for finding in report.findings_now(each):
            yield finding_line(each.path, finding)


def _table(report: Report) -> Iterator[str]:
    rows = [(code, str(each.native), str(each.dropin), str(each.person)) for code, each in report.sites.items()]
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows)]
    for first, *numbers in (_COLUMNS, *rows):
        yield "  ".join([first.ljust(widths[0]), *(text.rjust(width) for text, width in zip(numbers, widths[1:]))])


def _summary(report: Report) -> Iterator[str]:
    word = "" if report.mode is WriteMode.IN_PLACE and not report.is_refused else "would be "
    counts = [(report.count(outcome), name) for outcome, name in _COUNTED]
    first = f"{_count(counts[0][0], 'file')} {word}changed"
    yield ", ".join([first, *(f"{count} {name}" for count, name in counts[1:])]) + "."
    if report.sites:
        yield "--explain CODE says more about a rule."
    if report.folders_left_out or report.files_left_out:
        yield (
            f"Left out: {_count(report.folders_left_out, 'folder')} and {_count(report.files_left_out, 'file')}"
            " (virtual environments, build results, ignored or excluded)."
        )
    for what, command in report.undo.items():
        yield f"To {what}: {command}"


def _review(report: Report, command: str) -> Iterator[str]:
    count = report.found(Kind.REVIEW)
    if count and command:
        loops = f"{count} more {'loop' if count == 1 else 'loops'}"
        first = "commit, then " if report.undo else ""
        yield f"--level review would convert {loops}: {first}{command}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
