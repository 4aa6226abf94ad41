"""Replacing a file as a whole: whatever happens, there is the old file or the new one, never half of either."""

from __future__ import annotations

import os
import stat

from amp_migrate.whole_file import is_read_only, whole_file


def replace_bytes(path: str, new: bytes, expected: bytes) -> None:
    """Make ``new`` the content of ``path`` if it is still ``expected``; raise OSError, with the reason, if it can't.

    The new content is written beside the file, made durable, and renamed over it. Permissions are kept, and owner
    and group where the system allows it. A symbolic link stays one: its target is replaced.
    """
    target = os.path.realpath(path)
    info = os.stat(target)
    if is_read_only(target, info):
        raise PermissionError("the file is read-only")
    with open(target, "rb") as current:
        if current.read() != expected:
            raise OSError("the file was changed by somebody else in the meantime; run this again")
    _swap(target, new, info)


def write_bytes(path: str, new: bytes) -> None:
    """Make ``new`` the content of ``path``, whatever it was before, or raise OSError. What is no file is written into.

    Somebody else's half of a report would be worse than the old one, so this too replaces the file as a whole.
    """
    target = os.path.realpath(path)
    info = os.stat(target) if os.path.exists(target) else None
    if info is not None and not stat.S_ISREG(info.st_mode):
        with open(target, "wb") as file:  # /dev/stdout and the like; a folder says that it is one
            file.write(new)
        return
    _swap(target, new, info)


def _swap(target: str, new: bytes, info: os.stat_result | None) -> None:
    with whole_file(target, info) as file:
        file.write(new)
