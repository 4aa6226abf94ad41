"""Which files are converted, and where each goes."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

from ...whole_file import UNFINISHED
from ..distributed.recognise import is_distributed
from ..errors import CannotConvert
from ..opening.sniffing import HEAD, ZIP_MAGIC, what_it_is
from .arguments import Command

#: names that only checkpoints have: one that can't be opened is an error
_CHECKPOINTS = frozenset((".pt", ".pth", ".ckpt", ".pyt", ".th"))
#: names that other things have as well: what can't be opened is copied with the rest of its folder
_OTHERS = frozenset((".bin", ".tar", ".pkl", ".pickle", ".model"))
#: what ``--in-place`` has kept
_BACKUP = re.compile(r"\.bak[0-9]*$")


@dataclass(frozen=True)
class Task:
    """One file: where it goes (None: nowhere), and whether it is only copied, or copied if it is no checkpoint.

    ``distributed`` is a folder of ``torch.distributed.checkpoint`` as a whole. ``in_folder``: it is a part of a folder
    that is converted, so folders are made for it.
    """

    source: Path
    target: Path | None
    is_copied: bool = False
    may_be_copied: bool = False
    in_place: bool = False
    distributed: bool = False
    in_folder: bool = False


def tasks_of(command: Command) -> list[Task]:
    """Return what is to be done, in the order of the paths.

    Raises:
        CannotConvert: for a path that isn't there, and for a target that can't be meant.
    """
    found: list[Task] = []
    for source in command.sources:
        if not os.path.lexists(source):
            raise CannotConvert(f"{source}: no such file or folder")
        if not source.exists():
            raise CannotConvert(f"{source}: a symbolic link to {os.readlink(source)}, which isn't there")
        found += _of_folder(source, command) if source.is_dir() else [_of_file(source, command)]
    return _distinct(found)


def checkpoints_below(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that may be checkpoints, and folders of ``torch.distributed.checkpoint``."""
    for path in _below(folder):
        if path.is_dir() or _may_be_checkpoint(path):
            yield path


def is_named_checkpoint(path: Path) -> bool:
    """Whether only a checkpoint is called like this, so that a file that is none is an error."""
    return path.is_dir() or path.suffix.lower() in _CHECKPOINTS


def _of_file(source: Path, command: Command) -> Task:
    if command.in_place:
        return Task(source, source, in_place=True)
    if command.target is None:
        return Task(source, beside(source, command.options.get("to", "native")))
    if command.into_folder:
        return Task(source, command.target / source.name, in_folder=True)
    return Task(source, command.target)


def _of_folder(source: Path, command: Command) -> Iterator[Task]:
    """What is below a folder goes to the same places below the target."""
    target = source if command.in_place else _target_of_folder(source, command)
    for path in _below(source):
        place = target / path.relative_to(source)
        if path.is_dir():
            whole = path == source and not command.into_folder
            yield Task(path, place, in_place=command.in_place, distributed=True, in_folder=not whole)
        elif _may_be_checkpoint(path) and not _BACKUP.search(path.name):
            maybe = not is_named_checkpoint(path)
            yield Task(path, place, in_place=command.in_place, may_be_copied=maybe, in_folder=True)
        elif not command.in_place:
            yield Task(path, place, is_copied=True, in_folder=True)


def _target_of_folder(source: Path, command: Command) -> Path:
    if command.target is None:
        named = source if source.name not in ("", "..") else Path(os.path.abspath(source))
        return named.with_name(f"{named.name}.{command.options.get('to', 'native')}")
    target = command.target / source.resolve().name if command.into_folder else command.target
    inner, outer = target.resolve(), source.resolve()
    if inner == outer:
        raise CannotConvert(f"{target} is SRC itself; name another folder, or use --in-place")
    if outer in inner.parents:
        raise CannotConvert(f"{target} is inside {source}; name a folder beside it")
    return target


def _below(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder; a folder of ``torch.distributed.checkpoint`` as one."""
    for root, folders, names in os.walk(folder, onerror=_raise):
        if is_distributed(Path(root)):
            folders.clear()
            yield Path(root)
            continue
        folders[:] = sorted(name for name in folders if not _BACKUP.search(name) and not name.endswith(UNFINISHED))
        for name in sorted(names):
            path = Path(root, name)
            if path.is_file() and not name.endswith(UNFINISHED):
                yield path


def _raise(error: OSError) -> None:
    raise error


def _may_be_checkpoint(path: Path) -> bool:
    if path.suffix.lower() in _CHECKPOINTS:
        return True
    with open(path, "rb") as file:
        head = file.read(HEAD)
    return head.startswith(ZIP_MAGIC) or (bool(head) and what_it_is(head) is None)


def beside(source: Path, to: str) -> Path:
    """Return the name of a converted file beside its source: ``old.native.pt``, ``best.native.pth.tar``."""
    stem, endings = source.name, ""
    while Path(stem).suffix.lower() in _CHECKPOINTS | _OTHERS:
        endings = Path(stem).suffix + endings
        stem = Path(stem).stem
    return source.with_name(f"{stem}.{to}{endings or '.pt'}")


def _distinct(tasks: list[Task]) -> list[Task]:
    """Return the tasks without those that are there twice: a file that is named again, or by a symbolic link."""
    seen: dict[Path, Task] = {}
    kept = []
    for task in tasks:
        place = task.source.resolve() if task.target is None or task.in_place else task.target.resolve()
        other = seen.setdefault(place, task)
        if other is task:
            kept.append(task)
        elif not task.in_place and other.source.resolve() != task.source.resolve():
            both = f"{other.source} and {task.source} would both become {task.target}"
            raise CannotConvert(f"{both}; convert them one by one")
    return kept
