"""What goes into a rewrite and what comes out of it, as plain values."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Mapping

from amp_migrate.codemods.findings import Finding
from amp_migrate.codemods.target import Target


class Outcome(enum.Enum):
    """What became of a file. ``NEEDS_PERSON``: it uses Apex, and nothing in it could be changed."""

    CHANGED = "changed"
    UNCHANGED = "unchanged"
    NEEDS_PERSON = "for a person"
    SKIPPED = "skipped"
    FAILED = "failed"


class WriteMode(enum.Enum):
    """What to do with the new source of a file."""

    IN_PLACE = "in place"
    DIFF = "diff"
    CHECK = "check"


@dataclass(frozen=True)
class Settings:
    """What the rules should aim at, and which of them are wanted (codes or the beginnings of codes; none: all)."""

    target: Target = Target()
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()


#: what is used where no settings are given
DEFAULT_SETTINGS = Settings()


@dataclass(frozen=True)
class Result:
    """What became of one source.

    ``source`` is always the whole text to use from now on: the new one if ``outcome`` is ``CHANGED``, the old one
    otherwise. ``reason`` says why something was skipped or failed. ``edits`` counts, per rule, the places changed.
    ``findings`` have their places in the old source, ``findings_after`` the same ones in ``source``.
    """

    outcome: Outcome
    source: bytes
    edits: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    findings_after: tuple[Finding, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class FileResult:
    """A :class:`Result` with the path as the user would write it, and the source as it was read."""

    path: str
    result: Result
    before: bytes = b""
