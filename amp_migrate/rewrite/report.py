"""What a run did: one object owns the counts and the exit code."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Iterator, Mapping

from amp_migrate.codemods.findings import Finding, Kind
from amp_migrate.rewrite.results import FileResult, Outcome, WriteMode

EXIT_DONE = 0
EXIT_WOULD_CHANGE = 1
EXIT_FAILED = 2

#: findings about places that aren't done with
LEFT = frozenset({Kind.DROPIN, Kind.REVIEW, Kind.PERSON})
#: rules whose edits lead to the drop-in, not to native code
_TO_DROPIN = frozenset({"AMP001"})


@dataclass(frozen=True)
class Sites:
    """How many places one rule dealt with, by where they are now."""

    native: int = 0
    dropin: int = 0
    person: int = 0

    def __add__(self, other: Sites) -> Sites:
        return Sites(self.native + other.native, self.dropin + other.dropin, self.person + other.person)


@dataclass(frozen=True)
class Report:
    """The results of one run over files.

    ``results`` has every file but the ``unchanged`` ones, which are only counted. ``refused`` names files with
    uncommitted changes, and ``git_problem`` what git said instead of an answer: with either, nothing was written.
    ``undo`` is a command for each thing a user may want next. ``notes`` are about the whole run. ``strict``: places
    that are left make the exit code 1.
    """

    mode: WriteMode
    results: tuple[FileResult, ...] = ()
    unchanged: int = 0
    folders_left_out: int = 0
    files_left_out: int = 0
    refused: tuple[str, ...] = ()
    git_problem: str = ""
    undo: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    strict: bool = False

    def count(self, outcome: Outcome) -> int:
        """Return how many files ended that way."""
        if outcome is Outcome.UNCHANGED:
            return self.unchanged
        return sum(1 for _ in self.ended(outcome))

    def ended(self, outcome: Outcome) -> Iterator[FileResult]:
        """Yield the files that ended that way."""
        return (each for each in self.results if each.result.outcome is outcome)

    @property
    def edits(self) -> Mapping[str, int]:
        """How many places each rule changed, or would change."""
        total: Counter[str] = Counter()
        for each in self.ended(Outcome.CHANGED):
            total.update(each.result.edits)
        return dict(sorted(total.items()))

    @property
    def sites(self) -> Mapping[str, Sites]:
        """What each rule dealt with, by code."""
        total: dict[str, Sites] = {}
        for each in self.results:
            for code, sites in _sites(each):
                total[code] = total.get(code, Sites()) + sites
        return dict(sorted(total.items()))

    def found(self, *kinds: Kind) -> int:
        """Return how many findings are of these kinds."""
        return sum(finding.kind in kinds for each in self.results for finding in each.result.findings)

    def findings_now(self, each: FileResult) -> tuple[Finding, ...]:
        """Return the findings of ``each`` with their places in the file as it is now."""
        return each.result.findings_after if self.is_written(each) else each.result.findings

    def is_written(self, each: FileResult) -> bool:
        """Return whether the new source of ``each`` was written."""
        return each.result.outcome is Outcome.CHANGED and self.mode is WriteMode.IN_PLACE and not self.is_refused

    @property
    def is_refused(self) -> bool:
        """Whether nothing was written because git couldn't bring the files back."""
        return bool(self.refused or self.git_problem)

    @property
    def exit_code(self) -> int:
        """0: done, or nothing to do. 1: something would change, or with ``strict``, is left. 2: something failed."""
        if self.count(Outcome.FAILED) or self.is_refused:
            return EXIT_FAILED
        if self.mode is not WriteMode.IN_PLACE and self.count(Outcome.CHANGED):
            return EXIT_WOULD_CHANGE
        if self.strict and self.found(*LEFT):
            return EXIT_WOULD_CHANGE
        return EXIT_DONE


def _sites(each: FileResult) -> Iterator[tuple[str, Sites]]:
    findings = Counter((finding.code, finding.kind) for finding in each.result.findings)
    for code in {*each.result.edits, *(code for code, _ in findings)}:
        # a note speaks of a place that was edited, so the two aren't added up
        done = max(each.result.edits.get(code, 0), findings[code, Kind.NOTE])
        left = findings[code, Kind.DROPIN] + findings[code, Kind.REVIEW]
        native, dropin = (0, done) if code in _TO_DROPIN else (done, 0)
        yield code, Sites(native, dropin + left, findings[code, Kind.PERSON])
