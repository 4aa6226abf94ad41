"""AMP192: evaluation runs in float32 now."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .registry import rule
from .source_file import SourceFile


@rule("AMP192", "evaluation runs in float32 now", Level.REVIEW)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: Apex's casts were on everywhere, also in validation. Natively they are on in the training loop only, so that
    validation takes more memory and its results differ in the last digits.

    What to do: nothing, or --autocast-eval.
    """
    yield from source.native.reports_of("AMP192")
