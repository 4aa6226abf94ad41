"""One source, from bytes to bytes. Nothing here reads or writes a file: the command, stdin and tests all call this."""

from __future__ import annotations

import re

from amp_migrate.rewrite.results import DEFAULT_SETTINGS, Outcome, Result, Settings

#: LibCST needs about 1.4 KB of memory per byte of source; sources that big are generated data.
MAX_BYTES = 1_000_000

#: ``from apex``, ``import … apex`` on one logical line, or a string that begins with apex. What doesn't match imports
#: no Apex, so it needn't be parsed. What matches may still be a comment.
_MAY_IMPORT = re.compile(
    rb"""\bfrom [\s\\]+ apex\b | \bimport\b (?:[^\n\\] | \\\r?\n?)*? \bapex\b | ["'] apex \b""", re.VERBOSE
)


def may_import_apex(source: bytes) -> bool:
    """Return False only for a source that certainly doesn't import Apex. Cheap: it's a search, not a parse."""
    return b"apex" in source and _MAY_IMPORT.search(source) is not None


def rewrite_source(source: bytes, settings: Settings = DEFAULT_SETTINGS, *, own_apex: str = "") -> Result:
    """Return what becomes of ``source``. Pure: the same bytes and settings give the same result.

    ``own_apex`` is the path of a module called apex that belongs to the project; then its imports are left alone.
    Encoding, byte-order mark, line ends, tabs and form feeds are kept. A changed source has been checked: it compiles,
    and rewriting it again changes nothing.
    """
    if not may_import_apex(source):
        return Result(Outcome.UNCHANGED, source)
    if len(source) > MAX_BYTES:
        size = f"{len(source) / 1e6:.1f} MB"
        return Result(Outcome.SKIPPED, source, reason=f"{size} is too big to parse; change its apex imports by hand")
    # libcst is needed only from here on: most files of a project don't mention Apex
    from amp_migrate.rewrite.parsed import rewrite_parsed

    return rewrite_parsed(source, settings, own_apex)
