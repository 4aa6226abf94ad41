"""What must hold before a changed source may be written, as checks with a name."""

from __future__ import annotations

import io
import sys
import tokenize
from typing import Iterable

from amp_migrate.rewrite.names import ENCLOSING, GLOBAL, LOCAL, reads_by_function, undefined_names
from amp_migrate.rewrite.syntax import check_syntax

_PYTHON_2 = ("Missing parentheses in call to", "multiple exception types must be parenthesized", "leading zeros in")


class ProofFailed(Exception):
    """A check failed. The message is one sentence for a person."""


def assert_decodes(source: bytes) -> None:
    """Raise :class:`ProofFailed` unless ``source`` is in the encoding that it declares, or in UTF-8."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        source.decode(encoding)
    except SyntaxError as error:
        raise ProofFailed(f"can't be decoded: {error.msg}") from error
    except UnicodeDecodeError as error:
        line = source.count(b"\n", 0, error.start) + 1
        raise ProofFailed(f"can't be decoded: line {line} isn't {error.encoding}; declare the encoding") from error


def assert_compiles(source: bytes, what: str = "") -> None:
    """Raise :class:`ProofFailed` unless this Python compiles ``source``. ``what`` begins the message."""
    version = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    try:
        check_syntax(source)
    except SyntaxError as error:
        hint = "; this is Python 2" if (error.msg or "").startswith(_PYTHON_2) else ""
        line = f"line {error.lineno}: " if error.lineno else ""
        raise ProofFailed(f"{what}doesn't compile with {version}: {line}{error.msg}{hint}") from error
    except ValueError as error:  # NUL bytes, before Python 3.12
        raise ProofFailed(f"{what}doesn't compile with {version}: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise ProofFailed(f"{what}is nested too deeply for {version} to compile") from error


def assert_stable(once: bytes, twice: bytes) -> None:
    """Raise :class:`ProofFailed` unless rewriting ``once``, a result, gave it back as ``twice``."""
    if twice != once:
        raise ProofFailed("a second run would change the result again; please report this")


def assert_names_defined(before: bytes, after: bytes) -> None:
    """Raise :class:`ProofFailed` if ``after`` reads a name that nothing binds any more. Both compile.

    A name that was undefined before may stay so. It is also wrong if a function read a name of its own, and now the
    same name means something further out, because what bound it in the function is gone.
    """
    lost = undefined_names(after) - undefined_names(before)
    if lost:
        raise ProofFailed(f"the result reads {_listed(lost)}, which nothing defines any more; please report this")
    new = reads_by_function(after)
    for path, functions in reads_by_function(before).items():
        others = new.get(path, ())
        if len(others) != len(functions):
            continue  # some are gone, so which of them is which can't be seen
        for old_reads, new_reads in zip(functions, others):
            moved = {name for name, home in old_reads.items() if _DISTANCE[new_reads.get(name, home)] > _DISTANCE[home]}
            if moved:
                where = f"{'.'.join(path)} of the result"
                raise ProofFailed(f"{where} reads {_listed(moved)} that it no longer binds; please report this")


_DISTANCE = {LOCAL: 0, ENCLOSING: 1, GLOBAL: 2}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
