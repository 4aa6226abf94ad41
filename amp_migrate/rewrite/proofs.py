"""What must hold before a changed source may be written, as checks with a name."""

from __future__ import annotations

import io
import sys
import tokenize
import warnings

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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a wrong escape in a user's string isn't our subject
            compile(source, "<source>", "exec", dont_inherit=True)
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
