"""Write a tree as a file that ``torch.load`` opens, as a whole or not at all."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Any

from ...whole_file import UNFINISHED, is_read_only, whole_file
from ..dtypes import byte_size
from ..errors import CannotConvert
from ..foreign import refuse_foreign
from ..records import Storage
from .hints import reserve
from .pickling import Pickler
from .zip_file import write_zip

#: what a storage's entry takes beside its bytes, at most
_ENTRY_BYTES = 512


def write_checkpoint(
    tree: Any, path: str | os.PathLike[str], *, overwrite: bool = False, like: str | os.PathLike[str] | None = None
) -> None:
    """Write ``tree`` in torch's zip format. Only the storages that it uses are written, each once.

    What is read by ``torch.load(path, weights_only=True)`` has the same values, views and sharing. The file appears
    under its name when it is complete and on the disk; until then, whatever happens, what was there before stays.

    Args:
        tree: plain data and records.
        path: where to; a symbolic link stays one, and its target is written.
        overwrite: replace a file that is there. The sources of the tree's storages may be that file.
        like: a file whose permissions and owner the new one gets; by default that of ``path`` if it exists.

    Raises:
        Unsafe: the tree holds foreign objects.
        CannotConvert: it holds something that can't be written.
        FileExistsError: there is a file, and ``overwrite`` isn't set.
        OSError: it can't be written; too little space is noticed before anything is.
    """
    target = os.path.realpath(path)
    before = os.stat(target) if os.path.exists(target) else None
    _check_target(target, before, overwrite)
    refuse_foreign(tree)
    pickler = Pickler()
    pickle = pickler.dump(tree)
    storages = list(pickler.storages.values())
    size = _size_at_most(pickle, storages)
    _check_space(target, size)
    model = before if like is None else os.stat(like)
    with whole_file(target, model) as file:
        reserve(file.fileno(), size)
        write_zip(file, pickle, storages)
        file.truncate()


def _check_target(target: str, before: os.stat_result | None, overwrite: bool) -> None:
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"{folder} is no folder; make it first")
    if before is None:
        return
    if not stat.S_ISREG(before.st_mode):
        raise CannotConvert(f"{target} is no regular file; name another one to write to")
    if not overwrite:
        raise FileExistsError(f"{target} exists already; name another file, or move it away")
    if is_read_only(target, before):
        raise PermissionError(f"{target} is read-only")


def _size_at_most(pickle: bytes, storages: list[Storage]) -> int:
    return len(pickle) + sum(byte_size(storage) + _ENTRY_BYTES for storage in storages) + 8 * _ENTRY_BYTES


def _check_space(target: str, needed: int) -> None:
    folder = os.path.dirname(target)
    free = shutil.disk_usage(folder).free
    if needed <= free:
        return
    stale = sorted(Path(folder).glob(f".*{UNFINISHED}"))
    hint = f"; {stale[0]} is left of a run that was killed, and may be deleted" if stale else ""
    raise OSError(f"{folder} has {free / 1e9:.1f} GB left, and the file needs {needed / 1e9:.1f} GB{hint}")
