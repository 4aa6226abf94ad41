"""One source, from bytes to bytes. Nothing here reads or writes a file: the command, stdin and tests all call this."""

from __future__ import annotations

import re

from amp_migrate.rewrite.results import DEFAULT_SETTINGS, Outcome, Result, Settings

#: LibCST needs about 1.4 KB of memory per byte of source; sources that big are generated data.
MAX_BYTES = 1_000_000

#: ``from apex``, ``import … apex`` on one logical line, or a string that begins with apex, and the same for
#: ``amp_migrate.apex``: an earlier run may have left a file on the drop-in. What doesn't match imports no Apex, so it
#: needn't be parsed. What matches may still be a comment.
_MAY_IMPORT = re.compile(
    rb"""\bfrom [\s\\]+ (?: amp_migrate [\s\\]* \. [\s\\]* )? apex\b
    | \bimport\b (?:[^\n\\] | \\\r?\n?)*? \bapex\b
    | ["'] (?: amp_migrate \. )? apex \b""",
    re.VERBOSE,
)


def may_import_apex(source: bytes) -> bool:
    """Return False only for a source that certainly doesn't import Apex. Cheap: it's a search, not a parse."""
    return b"apex" in source and _MAY_IMPORT.search(source) is not None


def rewrite_source(source: bytes, settings: Settings = DEFAULT_SETTINGS, *, own_apex: str = "") -> Result:
    """Return what becomes of ``source``. Pure: the same bytes and settings give the same result.

    ``own_apex`` is the path of a module called apex that belongs to the project; then its imports are left alone.
    Encoding, byte-order mark, line ends, tabs and form feeds are kept. A changed source has been checked: it compiles,
    it reads no name that nothing binds any more, and rewriting it again changes nothing.
    """
    if not may_import_apex(source):
        return Result(Outcome.UNCHANGED, source)
    if len(source) > MAX_BYTES:
        size = f"{len(source) / 1e6:.1f} MB"
        return Result(Outcome.SKIPPED, source, reason=f"{size} is too big to parse; change its apex imports by hand")
    # what is imported from here on is needed for few files: most of a project doesn't mention Apex
    from amp_migrate.rewrite.mentions import imports_apex
    from amp_migrate.rewrite.proofs import ProofFailed, assert_compiles, assert_decodes
    from amp_migrate.rewrite.suppress import SKIP_FILE, skips_file

    try:
        assert_decodes(source)
        # Python's own compiler goes first: it says best what is wrong, and both LibCST's parser and ast overflow the
        # stack (and end the process) on nesting that this one refuses.
        assert_compiles(source)
    except ProofFailed as error:
        return Result(Outcome.FAILED, source, reason=str(error))
    if not imports_apex(source, settings.target.to):
        return Result(Outcome.UNCHANGED, source)
    if skips_file(source):
        return Result(Outcome.SKIPPED, source, reason=f"it says `{SKIP_FILE}`")
    from amp_migrate.rewrite.parsed import rewrite_parsed

    return rewrite_parsed(source, settings, own_apex)
