"""Unified diffs of bytes, plain or coloured."""

from __future__ import annotations

import os
import re
from difflib import diff_bytes, unified_diff
from typing import Iterator

_LINES = re.compile(rb"[^\n]*\n|[^\n]+")
_COLOURS = ((b"+++", b"\033[1m"), (b"---", b"\033[1m"), (b"@@", b"\033[36m"), (b"+", b"\033[32m"), (b"-", b"\033[31m"))
_RESET = b"\033[0m"


def file_diff(path: str, before: bytes, after: bytes, colour: bool = False) -> bytes:
    """Return the diff as ``git apply`` and ``patch -p1`` take it; for an absolute path, ``patch -p0``."""
    name = os.fsencode(path.replace(os.sep, "/"))
    old, new = (name, name) if os.path.isabs(path) else (b"a/" + name, b"b/" + name)
    lines = diff_bytes(unified_diff, _LINES.findall(before), _LINES.findall(after), old, new, lineterm=b"\n")
    text = _ended(lines)
    return b"".join(_coloured(line) for line in text) if colour else b"".join(text)


def _ended(lines: Iterator[bytes]) -> Iterator[bytes]:
    """A last line without a line end is marked the way that ``patch`` knows."""
    for line in lines:
        yield line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"


def _coloured(line: bytes) -> bytes:
    for start, colour in _COLOURS:
        if line.startswith(start):
            content = line.rstrip(b"\r\n")
            return colour + content + _RESET + line[len(content) :]
    return line
