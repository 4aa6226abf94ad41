"""What a rule tells a person. Plain values: they can be pickled, and importing them doesn't import libcst."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.Enum):
    """How far a rule can be trusted without a person looking at what it did."""

    SAFE = "safe"
    REVIEW = "review"
    MANUAL = "manual"

    @property
    def meaning(self) -> str:
        """One sentence for ``--list-rules`` and ``--explain``."""
        return _MEANINGS[self]


_MEANINGS = {
    Level.SAFE: "applied; the program behaves as before",
    Level.REVIEW: "applied and listed; numerics or defaults change",
    Level.MANUAL: "left as it is and listed; a person decides",
}


@dataclass(frozen=True)
class Finding:
    """A place that was left for a person. ``line`` and ``col`` count from 1, as editors do."""

    line: int
    col: int
    code: str
    message: str
    advice: str

    def __str__(self) -> str:
        advice = self.advice[:1].upper() + self.advice[1:]
        return f"{self.line}:{self.col} {self.code} {self.message}. {advice}."
