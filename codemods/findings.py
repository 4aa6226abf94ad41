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
    Level.REVIEW: "applied with --level review and listed; numerics or defaults change",
    Level.MANUAL: "left as it is and listed; a person decides",
}


class Kind(enum.Enum):
    """What a finding says about its place."""

    #: it was rewritten; this is what is different now
    NOTE = "note"
    #: it runs on the drop-in
    DROPIN = "on the drop-in"
    #: it runs on the drop-in, and ``--level review`` would rewrite it
    REVIEW = "on the drop-in, --level review rewrites it"
    #: it was left as it is
    PERSON = "for a person"


@dataclass(frozen=True)
class Finding:
    """A place that a person should know of. ``line`` and ``col`` count from 1, as editors do."""

    line: int
    col: int
    code: str
    message: str
    advice: str
    kind: Kind = Kind.PERSON

    def __str__(self) -> str:
        advice = self.advice[:1].upper() + self.advice[1:]
        return f"{self.line}:{self.col} {self.code} {self.message}." + (f" {advice}." if advice else "")
