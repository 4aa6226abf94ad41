"""The report as one JSON object."""

from __future__ import annotations

import json
from typing import Any, Iterator

from amp_migrate import __version__
from amp_migrate.codemods.findings import Finding
from amp_migrate.rewrite.report import LEFT, Report
from amp_migrate.rewrite.results import FileResult, Outcome

#: raised when a key goes or changes its meaning; new keys may come at any time
SCHEMA = 1


def json_report(report: Report) -> Iterator[str]:
    """Yield the lines of the object. Paths that aren't UTF-8 have lone surrogates, as Python spells them."""
    everything = [(each, finding) for each in report.results for finding in report.findings_now(each)]
    content = {
        "schema": SCHEMA,
        "version": __version__,
        "mode": report.mode.value,
        "changed": [_changed(report, each) for each in report.ended(Outcome.CHANGED)],
        "unfixed": [_finding(each.path, finding) for each, finding in everything if finding.kind in LEFT],
        "failed": [_reason(each) for each in report.ended(Outcome.FAILED)],
        "skipped": [_reason(each) for each in report.ended(Outcome.SKIPPED)],
        "refused": list(report.refused),
        "git_problem": report.git_problem,
        "notes": list(report.notes),
        "undo": dict(report.undo),
        "counts": _counts(report),
        "exit_code": report.exit_code,
    }
    yield from json.dumps(content, indent=2).splitlines()


def _changed(report: Report, each: FileResult) -> dict[str, Any]:
    notes = [finding for finding in report.findings_now(each) if finding.kind not in LEFT]
    return {
        "path": each.path,
        "written": report.is_written(each),
        "edits": dict(sorted(each.result.edits.items())),
        "notes": [_finding(each.path, finding) for finding in notes],
    }


def _finding(path: str, finding: Finding) -> dict[str, Any]:
    from amp_migrate.codemods.registry import find_rule  # imports libcst, which a run without findings doesn't need

    rule = find_rule(finding.code)
    return {
        "path": path,
        "line": finding.line,
        "col": finding.col,
        "code": finding.code,
        "level": rule.level.value if rule else "",
        "kind": finding.kind.name.lower(),
        "message": finding.message,
        "advice": finding.advice,
    }


def _reason(each: FileResult) -> dict[str, str]:
    return {"path": each.path, "reason": each.result.reason}


def _counts(report: Report) -> dict[str, Any]:
    return {
        "files": {outcome.name.lower(): report.count(outcome) for outcome in Outcome},
        "folders_left_out": report.folders_left_out,
        "files_left_out": report.files_left_out,
        "sites": {
            code: {"native": each.native, "dropin": each.dropin, "person": each.person}
            for code, each in report.sites.items()
        },
    }
