"""The report as text."""

from __future__ import annotations

from typing import Sequence

from ..notes import Kind
from .outcome import Outcome, Result

_ORDER = (Kind.CHANGED, Kind.KEPT, Kind.ASSUMED, Kind.LOST)
_MOST_OF_A_KIND = 20
#: what happens to a file without Apex state, by dry run and in place
_LEFT = {
    (False, False): ", written as it is",
    (False, True): ", left as it is",
    (True, False): "",
    (True, True): "",
}


def lines_of(outcome: Outcome, dry_run: bool) -> list[str]:
    """Return what is said of one file; of a copied one or one left alone nothing."""
    task = outcome.task
    if outcome.result is Result.FAILED:
        return [f"{task.source}: {outcome.error}"]
    if outcome.result in (Result.COPIED, Result.SKIPPED):
        return []
    where = "" if task.target is None or task.in_place else f" -> {task.target}"
    head = f"{task.source}{where}" + (" (not written: --dry-run)" if dry_run else "")
    if outcome.result is Result.UNCHANGED:
        return [f"{head}: nothing to convert" + _LEFT[dry_run, task.in_place], *_notes(outcome, about_the_file=False)]
    lines = [head, *_notes(outcome)]
    if outcome.backup is not None:
        what = "folder" if task.distributed else "file"
        lines.append(f"  the old {what} is {outcome.backup}")
    return lines


def _notes(outcome: Outcome, about_the_file: bool = True) -> list[str]:
    lines = []
    for kind in _ORDER:
        mine = [note for note in outcome.report.notes if note.kind is kind and (note.place or about_the_file)]
        for note in mine[:_MOST_OF_A_KIND]:
            place = f"{note.place}: " if note.place else ""
            lines.append(f"  {kind.value:8} {place}{note.text}")
        if len(mine) > _MOST_OF_A_KIND:
            lines.append(f"  {kind.value:8} and {len(mine) - _MOST_OF_A_KIND} more; --json lists all")
    return lines


def summary(outcomes: Sequence[Outcome]) -> str | None:
    """Return one line on several files; None for a single one."""
    if len(outcomes) < 2:
        return None
    counts = [(result, sum(each.result is result for each in outcomes)) for result in Result]
    return ", ".join(f"{count} {result.value}" for result, count in counts if count)
