"""Room on the disk for a file that is about to be written."""

from __future__ import annotations

import ctypes
import sys
from typing import BinaryIO


def reserve(file: BinaryIO, size: int) -> None:
    """Tell the file system how big ``file`` will be, where it takes that; the file's content isn't changed.

    Writing to room that is there is a third faster on ext4, and the file ends up in one piece. Called by its name in
    the C library: ``os.posix_fallocate`` writes zeros where the file system can't do it (NFS), which is no gain.
    Whoever writes less has to cut the file off behind what was written.
    """
    if sys.platform != "linux":
        return
    try:
        fallocate = ctypes.CDLL(None).fallocate64
    except (AttributeError, OSError):  # another C library
        return
    fallocate(file.fileno(), 0, ctypes.c_int64(0), ctypes.c_int64(size))
