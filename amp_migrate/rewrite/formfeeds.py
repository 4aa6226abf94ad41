"""Form feeds before the first word of a line: Python allows them, LibCST loses them, so they step aside meanwhile."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import Mapping

_AT_LINE_START = re.compile(rb"(?:[ \t]*\f)+")
FormFeeds = Mapping[int, bytes]


def hide_form_feeds(source: bytes) -> tuple[bytes, FormFeeds]:
    """Return ``source`` without form feeds at line starts, and what was taken away, by line (counted from 0).

    A form feed resets the indentation, so what stands before it may go too.
    """
    if b"\f" not in source:
        return source, {}
    lines = source.splitlines(keepends=True)
    taken = {}
    for number, line in enumerate(lines):
        found = _AT_LINE_START.match(line)
        if found:
            taken[number] = found.group()
            lines[number] = line[found.end() :]
    return b"".join(lines), taken


def show_form_feeds(hidden: bytes, new: bytes, taken: FormFeeds) -> bytes:
    """Return ``new``, which was made from ``hidden``, with the form feeds back before the same lines."""
    old_lines, new_lines = hidden.splitlines(keepends=True), new.splitlines(keepends=True)
    matcher = SequenceMatcher(None, old_lines, new_lines, autojunk=False)
    for _, old_start, old_end, new_start, new_end in matcher.get_opcodes():
        for number in range(old_start, min(old_end, old_start + new_end - new_start)):
            place = new_start + number - old_start
            new_lines[place] = taken.get(number, b"") + new_lines[place]
    return b"".join(new_lines)
