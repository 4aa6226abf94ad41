"""AMP190: a training loop stays on the drop-in."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .registry import rule
from .source_file import SourceFile


@rule("AMP190", "a training loop stays on the drop-in", Level.MANUAL)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: a rewrite that trains differently is worse than none. A loop becomes native as a whole, and only where the file
    shows that it may: every path from backward to step and on to the next backward is followed, through the functions
    and classes of the file. The message names the fact that is missing and its rule:

         1 a scaler per loss id           10 every backward of a step is scaled
         2 update behind every step       11 gradients are cleared between steps
         3 no unscale without a step      12 losses that reach other optimizers
         4 one loss, several optimizers   13 unscale once, behind the last backward
         5 no step without gradients      15 what reads gradients, and where
         6 static and bounded scales      18 the two copies of weights at O2
         8 who steps                      19 what a region may hold
         9 enabled= is a bool             20 half-precision values that leave a region
        26 functions get the scaler       27 branches that are the same

    Left as it is, with imports from amp_migrate.apex: it trains as under Apex.

    What to do: nothing, or change what the message names and run the command again.
    """
    yield from source.native.reports_of("AMP190")
