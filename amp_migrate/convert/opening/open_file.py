"""Open a checkpoint, in whichever format it is, without executing anything of it and without torch."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import CannotConvert, Damaged
from ..foreign import find_foreign
from ..notes import Report
from ..records import Global, PickledObject
from ..tree import depth, walk
from .legacy_file import open_pickles
from .opened import Contents, Opened
from .plain_data import becomes_plain, make_plain
from .sniffing import HEAD, ZIP_MAGIC, what_it_is
from .zip_file import open_zip

#: how deep objects may lie in each other. Whoever walks a tree by functions that call themselves can go this deep
MAX_DEPTH = 200
#: the place of what isn't in the tree
_THROWN_AWAY = "no place: the pickle uses it and throws it away"


def open_checkpoint(path: str | os.PathLike[str]) -> Opened:
    """Return what a file that ``torch.save`` or ``pickle.dump`` wrote holds, as plain data and records.

    Nothing that the file names is imported or called. The bytes of its tensors stay where they are.

    Raises:
        Damaged: it is no checkpoint, or a broken one, or made to take too much time or memory; says what it is.
        Unsafe: it can't be read without executing something.
        OSError: it can't be read.
    """
    source = Path(path)
    try:
        contents = _read(source)
        _check_depth(contents.tree)
        report = Report()
        discarded = _discarded(contents)
        root = make_plain(contents.tree, report) if contents.has_strangers else contents.tree
        foreign = {**find_foreign(root), **dict.fromkeys(discarded, (_THROWN_AWAY,))}
    except CannotConvert as error:
        raise type(error)(f"{source}: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise Damaged(f"{source}: reading it takes too much ({type(error).__name__})") from error
    return Opened(source, root, report, contents.format_name, contents.byteorder, contents.writer, foreign, discarded)


def _read(path: Path) -> Contents:
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise Damaged("this is a folder; give the files in it")
    if not stat.S_ISREG(mode):
        raise Damaged("this is no regular file (a pipe or a device); save it to a file first")
    with open(path, "rb") as file:
        return _read_open(file, path, os.fstat(file.fileno()).st_size)


def _read_open(file: BinaryIO, path: Path, length: int) -> Contents:
    head = file.read(HEAD)
    file.seek(0)
    if head.startswith(ZIP_MAGIC):
        return open_zip(file, path, length)
    what = what_it_is(head)
    if what is not None:
        raise Damaged(f"this is {what}")
    return open_pickles(file, path, length)


def _discarded(contents: Contents) -> tuple[str, ...]:
    """Return what the pickle named, and perhaps called, but didn't keep: a way to run something that no tree shows."""
    if not contents.strangers:
        return ()
    kept: set[str] = set()
    for value, _ in walk(contents.tree):
        if isinstance(value, PickledObject):
            kept.add(str(value.cls))
        elif isinstance(value, Global):
            kept.add(str(value))
    return tuple(sorted(name for name in contents.strangers - kept if not becomes_plain(name)))


def _check_depth(tree: Any) -> None:
    if depth(tree) > MAX_DEPTH:
        raise Damaged(f"objects lie in each other more than {MAX_DEPTH} deep; no checkpoint needs that")
