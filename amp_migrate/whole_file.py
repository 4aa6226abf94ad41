"""Writing a file as a whole: whatever happens, there is the old file or the new one, never half of either."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from typing import BinaryIO, Iterator

#: how the name of an unfinished file ends; a killed run leaves one behind
UNFINISHED = ".amp_migrate.tmp"


@contextlib.contextmanager
def whole_file(target: str, like: os.stat_result | None) -> Iterator[BinaryIO]:
    """Give a file to write to that becomes ``target`` at the end of the block, and never if the block raises.

    It is written beside ``target``, made durable, and renamed over it. It gets permissions, and where the system allows
    it owner and group, of the file that ``like`` describes, or what a new file gets.
    """
    folder = os.path.dirname(target) or "."
    handle, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(target)[:100]}.", suffix=UNFINISHED, dir=folder)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            if like is not None:
                _keep_owner_and_mode(temporary, like)
            else:
                os.chmod(temporary, 0o666 & ~_umask())
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(folder)


def is_read_only(path: str, info: os.stat_result) -> bool:
    """Whether a file mustn't be replaced. A rename would get round it, but whoever made it read-only meant it."""
    return not info.st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH) or not os.access(path, os.W_OK)


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
