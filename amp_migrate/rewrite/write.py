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
    folder = os.path.dirname(target)
    handle, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(target)}.", suffix=".amp_migrate.tmp", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(new)
            file.flush()
            if info is not None:
                _keep_owner_and_mode(temporary, info)
            else:
                os.chmod(temporary, 0o666 & ~_umask())
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(folder)


def _umask() -> int:
    """Return what the process takes away from the permissions of new files. It can only be asked by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


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
