"""AMP112: binary_cross_entropy on probabilities runs without casts."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .registry import rule
from .source_file import SourceFile


@rule("AMP112", "binary_cross_entropy on probabilities runs without casts", Level.SAFE)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: CUDA's autocast refuses torch.nn.functional.binary_cross_entropy and BCELoss, whatever they get; Apex ran
    them on float32.

    Before:
        loss = criterion(probability, target)

    After:
        with torch.autocast("cuda", enabled=False):
            loss = criterion(probability.float(), target.float())

    A call inside a larger expression, or with arguments that are computed in it, keeps its loop on the drop-in.

    Safe: the same numbers as under Apex. On a CPU autocast itself does this, so a run there can't show it.
    """
    yield from source.native.reports_of("AMP112")
