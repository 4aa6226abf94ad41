"""Errors of the system for people: what happened, where, and what to do next."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Mapping

from ...whole_file import UNFINISHED

#: what happened and what to do, when something is written
_WRITING: Mapping[int, str] = {
    errno.EACCES: "nothing may be written there; name another place with --output",
    errno.EPERM: "nothing may be written there; name another place with --output",
    errno.EROFS: "it can only be read; name another place with --output",
    errno.ENOSPC: "there is no space left; make room, or name another place with --output",
    errno.EDQUOT: "your quota is used up; make room, or name another place with --output",
    errno.EFBIG: "no file may be that big there; name another place with --output",
    errno.EEXIST: "exists already, and is not overwritten; name another place with --output, or move it away",
    errno.ENOTDIR: "a part of this is a file, not a folder; name another place with --output",
}
_READING: Mapping[int, str] = {
    errno.EACCES: "it may not be read; ask its owner, or run this as somebody who may",
    errno.ENOENT: "no such file; look at its name, and whether somebody else has moved it",
    errno.EIO: "the disk can't read it; copy it from elsewhere",
}


def said(error: OSError, source: Path, target: Path | None = None) -> str:
    """Return what an error means. One about ``source`` doesn't name it; one that names no file is about ``target``."""
    if error.strerror is None or error.errno is None:
        return str(error)
    if error.filename is None and target is not None:
        return f"{target.parent}: {_WRITING.get(error.errno, error.strerror)}"
    name = "" if error.filename is None else os.fspath(error.filename)
    if name == str(source):
        return _READING.get(error.errno, error.strerror)
    if error.errno == errno.ENOENT and not name.endswith(UNFINISHED):
        return f"{name}: {error.strerror}; make it first, or name another place"
    where = os.path.dirname(name) or "." if name.endswith(UNFINISHED) else name
    what = _WRITING.get(error.errno, error.strerror)
    return f"{where}: {what}" if where else what


def without_path(text: str, path: Path) -> str:
    """Return a message without the path that it begins with."""
    prefix = f"{path}: "
    return text[len(prefix) :] if text.startswith(prefix) else text


def printable(text: str) -> str:
    """Return a text in which nothing moves a terminal's cursor or can't be encoded: names come from files."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text)
