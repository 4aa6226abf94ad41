"""What a run did: one object owns the counts and the exit code."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Iterator, Mapping

from amp_migrate.rewrite.results import FileResult, Outcome, WriteMode

EXIT_DONE = 0
EXIT_WOULD_CHANGE = 1
EXIT_FAILED = 2


@dataclass(frozen=True)
class Report:
    """The results of one run over files.

    ``results`` has every file but the ``unchanged`` ones, which are only counted. ``refused`` names files with
    uncommitted changes, and ``git_problem`` what git said instead of an answer: with either, nothing was written.
    ``undo`` is a command for each thing a user may want next.
    """

    mode: WriteMode
    results: tuple[FileResult, ...] = ()
    unchanged: int = 0
    folders_left_out: int = 0
    files_left_out: int = 0
    refused: tuple[str, ...] = ()
    git_problem: str = ""
    undo: Mapping[str, str] = field(default_factory=dict)

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
    def findings(self) -> Mapping[str, int]:
        """How many places each rule left for a person."""
        total = Counter(finding.code for each in self.results for finding in each.result.findings)
        return dict(sorted(total.items()))

    @property
    def is_refused(self) -> bool:
        """Whether nothing was written because git couldn't bring the files back."""
        return bool(self.refused or self.git_problem)

    @property
    def exit_code(self) -> int:
        """0: done, or nothing to do. 1: with --check or --diff, something would change. 2: something failed."""
        if self.count(Outcome.FAILED) or self.is_refused:
            return EXIT_FAILED
        if self.mode is not WriteMode.IN_PLACE and self.count(Outcome.CHANGED):
            return EXIT_WOULD_CHANGE
        return EXIT_DONE
