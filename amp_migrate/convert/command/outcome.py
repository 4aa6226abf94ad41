"""What became of one file."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from ..notes import Report
from .tasks import Task


class Result(Enum):
    CONVERTED = "converted"
    #: nothing of Apex in it, and written as it was
    UNCHANGED = "unchanged"
    #: no checkpoint, and copied with the rest of its folder
    COPIED = "copied"
    #: no checkpoint, in a folder that is converted in place
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """One file: what was done, the notes on it, and the error if it failed."""

    task: Task
    result: Result
    report: Report
    backup: str | None = None
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return {
            "source": str(self.task.source),
            "target": None if self.task.target is None else str(self.task.target),
            "result": self.result.value,
            "layouts": list(self.report.layouts),
            "notes": [{"kind": n.kind.value, "place": n.place, "text": n.text} for n in self.report.notes],
            "backup": self.backup,
            "error": self.error,
        }


def result_of(report: Report) -> Result:
    """Return whether anything was converted."""
    return Result.UNCHANGED if report.is_unchanged else Result.CONVERTED
