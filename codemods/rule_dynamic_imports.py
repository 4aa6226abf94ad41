"""AMP003: Apex is asked for by a string."""

from __future__ import annotations

from typing import Iterator

from .dynamic_imports import DynamicImport
from .edits import Site
from .findings import Level
from .registry import rule
from .source_file import SourceFile


@rule("AMP003", "Apex is imported or asked for by a string that isn't rewritten", Level.MANUAL)
def check(source: SourceFile) -> Iterator[Site]:
    """
    Why: what `__import__` returns, or a name that is put together at run time, can't be followed. And a question such
    as `find_spec("apex")` is about the Apex that is installed, which nothing needs once the imports have moved.

    Left as it is:
        amp = __import__("apex.amp").amp
        module = importlib.import_module(f"apex.{name}")
        HAS_APEX = importlib.util.find_spec("apex") is not None

    What to do: write an import statement, or importlib.import_module("apex.amp") with the whole name, and run the
    command again; ask for amp_migrate.apex, or drop the question.
    """
    for verdict in source.verdicts:
        if verdict.stays is not None and isinstance(verdict.site, DynamicImport):
            yield Site(verdict.site.node, verdict.stays.message, verdict.stays.advice, verdict.stays.because)
