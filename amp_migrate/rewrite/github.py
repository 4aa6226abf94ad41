"""The report as GitHub's workflow commands, which become annotations of a pull request."""

from __future__ import annotations

import os
from typing import Iterator

from amp_migrate.codemods.findings import Finding, Kind
from amp_migrate.rewrite.report import Report
from amp_migrate.rewrite.results import FileResult, Outcome
from amp_migrate.rewrite.text import by_rule

_NAME = "amp_migrate"
_IN_MESSAGE = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_IN_PROPERTY = {**_IN_MESSAGE, ":": "%3A", ",": "%2C"}
_COMMANDS = {Kind.NOTE: "notice", Kind.DROPIN: "notice", Kind.REVIEW: "notice", Kind.PERSON: "warning"}


def github_report(report: Report) -> Iterator[str]:
    """Yield a command for each file that changes or failed, and for each finding."""
    for each in report.results:
        yield from _file(report, each)
        for finding in report.findings_now(each):
            yield _finding(each.path, finding)
    for path in report.refused:
        yield _command("error", path, _NAME, "not written: it has uncommitted changes; commit or stash them first")
    if report.git_problem:
        yield _command("error", "", _NAME, f"nothing was written: git doesn't answer: {report.git_problem}")
    yield from (_command("notice", "", _NAME, note) for note in report.notes)


def _file(report: Report, each: FileResult) -> Iterator[str]:
    if each.result.outcome is Outcome.CHANGED:
        word = "rewritten" if report.is_written(each) else "would be rewritten"
        yield _command("notice", each.path, _NAME, f"{word}: {by_rule(each.result.edits)}")
    elif each.result.outcome is Outcome.SKIPPED:
        yield _command("notice", each.path, _NAME, f"skipped: {each.result.reason}")
    elif each.result.outcome is Outcome.FAILED:
        yield _command("error", each.path, _NAME, each.result.reason)


def _finding(path: str, finding: Finding) -> str:
    message = str(finding).split(" ", 2)[2]
    return _command(_COMMANDS[finding.kind], path, finding.code, message, line=finding.line, col=finding.col)


def _command(command: str, path: str, title: str, message: str, **place: int) -> str:
    file = {"file": path.replace(os.sep, "/")} if path else {}
    properties = {**file, **{name: str(number) for name, number in place.items()}, "title": title}
    listed = ",".join(f"{name}={_escaped(value, _IN_PROPERTY)}" for name, value in properties.items())
    return f"::{command} {listed}::{_escaped(message, _IN_MESSAGE)}"


def _escaped(text: str, escapes: dict[str, str]) -> str:
    return "".join(escapes.get(character, character) for character in text)
