"""AMP197: what an opt level or loss scale passed at run time means now."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .registry import rule
from .source_file import SourceFile


@rule("AMP197", "what an opt level or loss scale passed at run time means now", Level.REVIEW)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: native AMP has no levels. The option stays: "O0" switches AMP off, every other level switches autocast on, with
    float32 weights. A loss scale that an option may set is dynamic now, as it was without the option.

    What to do: nothing, or replace the option by a flag.
    """
    yield from source.native.reports_of("AMP197")
