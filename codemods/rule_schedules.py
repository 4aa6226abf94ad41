"""AMP194: a learning-rate schedule advances on skipped steps."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .registry import rule
from .source_file import SourceFile


@rule("AMP194", "a learning-rate schedule advances on skipped steps", Level.REVIEW)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: a step that is skipped for an overflow doesn't change the weights, but the schedule goes on. It was so under
    Apex; torch warns when it happens before the first step. Several projects that migrated by hand changed it later.

    What to do: nothing, or --guard-scheduler.
    """
    yield from source.native.reports_of("AMP194")
