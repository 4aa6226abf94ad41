"""Replacing a file as a whole: whatever happens, there is the old file or the new one, never half of either."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile


def replace_bytes(path: str, new: bytes, expected: bytes) -> None:
    """Make ``new`` the content of ``path`` if it is still ``expected``; raise OSError, with the reason, if it can't.

    The new content is written beside the file, made durable, and renamed over it. Permissions are kept, and owner
    and group where the system allows it. A symbolic link stays one: its target is replaced.
    """
    target = os.path.realpath(path)
    info = os.stat(target)
    if not info.st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH) or not os.access(target, os.W_OK):
        # a rename would get round it, but whoever made the file read-only meant it
        raise PermissionError("the file is read-only")
    with open(target, "rb") as current:
        if current.read() != expected:
            raise OSError("the file was changed by somebody else in the meantime; run this again")
    folder = os.path.dirname(target)
    handle, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(target)}.", suffix=".amp_migrate.tmp", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(new)
            file.flush()
            _keep_owner_and_mode(temporary, info)
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(folder)


def _keep_owner_and_mode(path: str, info: os.stat_result) -> None:
    mine = os.stat(path)
    if hasattr(os, "chown") and (mine.st_uid, mine.st_gid) != (info.st_uid, info.st_gid):
        with contextlib.suppress(OSError):
            os.chown(path, info.st_uid, info.st_gid)
    os.chmod(path, stat.S_IMODE(info.st_mode))  # after chown, which clears set-id bits


def _sync_folder(folder: str) -> None:
    """Make the rename itself durable. Not every system can open a folder; there the rename is still atomic."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
