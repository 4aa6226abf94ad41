"""AMP193: the loss scale isn't in the checkpoint."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .registry import rule
from .source_file import SourceFile


@rule("AMP193", "the loss scale isn't in the checkpoint", Level.REVIEW)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: a resumed run starts with the scale 65536 again and may skip its first steps. It was so under Apex.

    What to do: save scaler.state_dict() and load it.
    """
    yield from source.native.reports_of("AMP193")
