"""AMP110: imports of Apex, their try, and flags that nothing reads go."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .registry import rule
from .source_file import SourceFile


@rule("AMP110", "imports of Apex, their try, and flags that nothing reads go", Level.SAFE)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: what nothing reads any more only asks for a package that no longer exists.

    Before:
        try:
            from apex import amp
            HAS_APEX = True
        except ImportError:
            HAS_APEX = False
        if not HAS_APEX:
            raise ImportError("Please install apex")

    After:
        (nothing)

    A flag that is still read elsewhere becomes HAS_APEX = True. Names that aren't converted stay, on the drop-in.

    Safe: a test of such a flag is settled as if Apex were there.
    """
    yield from source.native.reports_of("AMP110")
