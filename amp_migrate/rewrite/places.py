"""Where a finding is after its file was rewritten."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Sequence

from amp_migrate.codemods.findings import Finding, Kind


def findings_after(
    before: bytes, after: bytes, first: Sequence[Finding], second: Sequence[Finding]
) -> tuple[Finding, ...]:
    """Return the findings of the ``first`` run, which are in ``before``, with their places in ``after``.

    The ``second`` run, over ``after``, found most of them again and knows best where they are. What it no longer finds,
    such as a note on what was rewritten, is placed by comparing the lines.
    """
    groups: dict[tuple[str, Kind], list[Finding]] = defaultdict(list)
    again: dict[tuple[str, Kind], list[Finding]] = defaultdict(list)
    for finding in first:
        groups[finding.code, finding.kind].append(finding)
    for finding in second:
        again[finding.code, finding.kind].append(finding)
    placed: list[Finding] = []
    for key, group in groups.items():
        if len(again[key]) == len(group):
            placed += again[key]
        else:
            lines = _new_lines(before, after)
            placed += [replace(finding, line=lines[min(finding.line, len(lines) - 1)]) for finding in group]
    return tuple(sorted(placed, key=lambda finding: (finding.line, finding.col, finding.code)))


def _new_lines(before: bytes, after: bytes) -> list[int]:
    """Return, for each line of ``before`` counted from 1, the line of ``after`` that it became, or where it was."""
    old, new = before.splitlines(), after.splitlines()
    lines = [1] * (len(old) + 1)
    for _, old_start, old_end, new_start, new_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for number in range(old_start, old_end):
            last = max(new_end - 1, new_start)
            lines[number + 1] = min(new_start + number - old_start, last, max(len(new) - 1, 0)) + 1
    return lines
