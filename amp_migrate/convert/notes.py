"""What a conversion did, kept and dropped, for the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Kind(Enum):
    CHANGED = "changed"
    #: it can't be carried, and is gone
    LOST = "lost"
    #: the file doesn't say it, and a default was used; an option sets it
    ASSUMED = "assumed"
    KEPT = "kept"


@dataclass(frozen=True)
class Note:
    """One thing that happened at ``place`` (``optimizer.param_groups[0]``; "" is the whole file)."""

    kind: Kind
    place: str
    text: str


@dataclass
class Report:
    """The notes of one conversion, in order, and the layouts that were found."""

    layouts: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    #: whether a layout has put something in the place of what was there
    is_edited: bool = False

    @property
    def is_unchanged(self) -> bool:
        """Whether what comes out is what went in."""
        return not self.is_edited and all(note.kind is Kind.KEPT for note in self.notes)

    def add(self, kind: Kind, place: str, text: str) -> None:
        self.notes.append(Note(kind, place, text))
