"""AMP196: a loop became native that trains differently now."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .registry import rule
from .source_file import SourceFile


@rule("AMP196", "a loop became native that trains differently now", Level.REVIEW)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: you asked for it with --level review. The message says what changed; compare a run.
    """
    yield from source.native.reports_of("AMP196")
