"""A folder as a whole: written under another name beside its place, and renamed when it is complete."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from typing import Iterator

from ...whole_file import UNFINISHED
from ..errors import CannotConvert

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_MOST_BACKUPS = 10_000


@contextlib.contextmanager
def whole_folder(target: Path, like: Path) -> Iterator[Path]:
    """Give an empty folder to write to that becomes ``target`` at the end of the block, and never if the block raises.

    It and its files get the permissions of ``like`` and of the files in it.

    Raises:
        FileExistsError: ``target`` is there.
        OSError: there is too little space for another ``like``, or no folder for ``target``.
    """
    check_free(target)
    with _beside(target, like) as made:
        yield made
        _finish(made, like)
        os.rename(made, target)


@contextlib.contextmanager
def replaced_folder(folder: Path, backups: list[Path]) -> Iterator[Path]:
    """The same in place of ``folder``, which stays as ``NAME.bak``, ``NAME.bak1`` …; that is added to ``backups``."""
    place = Path(os.path.realpath(folder))
    with _beside(place, place) as made:
        yield made
        _finish(made, place)
        if _exchanged(made, place):
            backups.append(_moved_to_backup(made, place))
        else:
            backups.append(_moved_to_backup(place, place))
            os.rename(made, place)


def check_free(target: Path) -> None:
    """Raise FileExistsError if ``target`` is there, FileNotFoundError if there is no folder for it."""
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists already; name another folder, or move it away")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target.parent} is no folder; make it first")


@contextlib.contextmanager
def _beside(target: Path, like: Path) -> Iterator[Path]:
    target = Path(os.path.abspath(target))
    needed = sum(path.stat().st_size for path in like.rglob("*") if path.is_file())
    free = shutil.disk_usage(target.parent).free
    if needed > free:
        raise OSError(f"{target.parent} has {free / 1e9:.1f} GB left, and the folder needs {needed / 1e9:.1f} GB")
    made = Path(tempfile.mkdtemp(prefix=f".{target.name[:100]}.", suffix=UNFINISHED, dir=target.parent))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)  # is under its final name already if all went well


def _finish(made: Path, like: Path) -> None:
    """Set permissions, and wait until everything is on the disk."""
    models = [path for path in like.iterdir() if path.is_file()]
    mode = stat.S_IMODE(models[0].stat().st_mode) if models else 0o644
    for path in made.rglob("*"):
        if path.is_file() and not path.is_symlink():
            os.chmod(path, mode)
            _sync(path)
    os.chmod(made, stat.S_IMODE(like.stat().st_mode))
    _sync(made)


def _sync(path: Path) -> None:
    with contextlib.suppress(OSError):  # not every system can open a folder
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _moved_to_backup(path: Path, place: Path) -> Path:
    for number in range(_MOST_BACKUPS):
        backup = place.with_name(f"{place.name}.bak{number or ''}")
        if os.path.lexists(backup):
            continue
        try:
            os.rename(path, backup)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):  # somebody else was faster
                continue
            raise
        return backup
    raise CannotConvert(f"{place} has ten thousand backups; move some away")


def _exchanged(one: Path, other: Path) -> bool:
    """Let two folders change names, at once; return False where the system can't (renameat2 is Linux's)."""
    if not sys.platform.startswith("linux"):
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    done: int = rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), ctypes.c_uint(_RENAME_EXCHANGE))
    return done == 0
