"""AMP191: a training loop could be native, but would train differently."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .registry import rule
from .source_file import SourceFile


@rule("AMP191", "a training loop could be native, but would train differently", Level.MANUAL)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: opt level O2 (half weights with float32 masters), a static loss scale, or several loss ids on one
    optimizer have no exact native counterpart. The message says what would change.

    Left as it is: on the drop-in. What to do: `--level review` makes it native and lists what changed (AMP196).
    """
    yield from source.native.reports_of("AMP191")
