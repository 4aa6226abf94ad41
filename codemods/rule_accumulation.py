"""AMP195: overflows count per step where several backwards lead to it."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .registry import rule
from .source_file import SourceFile


@rule("AMP195", "overflows count per step where several backwards lead to it", Level.REVIEW)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: Apex checked the gradients of every backward (micro-batch, or loss) and halved its scale for each overflow;
    GradScaler checks once per step. After an overflow the scale, and so which steps are skipped, can differ for a
    while.

    A plain backward beside scaled ones is scaled as well: its gradients are added to theirs, and can overflow now.

    What to do: nothing.
    """
    yield from source.native.reports_of("AMP195")
