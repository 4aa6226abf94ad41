"""Doing one task. Errors that a file can bring about end up in its outcome, so that the other files are still done."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path
from typing import Any, Iterator, Mapping

from ...whole_file import whole_file
from ..errors import CannotConvert, Damaged
from ..notes import Report
from .outcome import Outcome, Result, result_of
from .said import said, without_path
from .tasks import Task

_CHUNK = 1 << 22


def work(task: Task, options: Mapping[str, Any], dry_run: bool) -> Outcome:
    """Convert or copy one file."""
    try:
        _check_place(task, dry_run)
        return _copied(task, dry_run) if task.is_copied else _converted(task, options, dry_run)
    except Damaged as error:
        return _other_file(task, dry_run) if task.may_be_copied else _failed(task, error)
    except (CannotConvert, OSError) as error:
        return _failed(task, error)


def _failed(task: Task, error: Exception) -> Outcome:
    if isinstance(error, OSError):
        text = said(error, task.source, task.target)
    else:
        text = without_path(str(error), task.source)
    return Outcome(task, Result.FAILED, Report(), error=text)


def _other_file(task: Task, dry_run: bool) -> Outcome:
    """A file that could have been a checkpoint, and is none."""
    if task.in_place:
        return Outcome(task, Result.SKIPPED, Report())
    try:
        return _copied(task, dry_run)
    except OSError as error:
        return _failed(task, error)


def _check_place(task: Task, dry_run: bool) -> None:
    """Raise OSError, before anything is done, if nothing can be written to the task's place; make folders on the way.

    A folder that nobody has named isn't made for a single file: the name would be a mistake.
    """
    if task.in_place or task.target is None:
        return
    if os.path.lexists(task.target):
        raise FileExistsError(errno.EEXIST, "exists already", str(task.target))
    if task.in_folder and not dry_run:
        task.target.parent.mkdir(parents=True, exist_ok=True)
    elif not task.in_folder and not task.target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(task.target.parent))


def _converted(task: Task, options: Mapping[str, Any], dry_run: bool) -> Outcome:
    if task.distributed:
        return _converted_folder(task, options, dry_run)
    from ..file import check_file, convert_file

    if dry_run:
        report = check_file(task.source, **options)
        return Outcome(task, result_of(report), report)
    assert task.target is not None
    if not task.in_place:
        report = convert_file(task.source, task.target, **options)
        return Outcome(task, result_of(report), report)
    report = check_file(task.source, **options)
    if result_of(report) is Result.UNCHANGED:
        return Outcome(task, Result.UNCHANGED, report)
    with _backup(task.source) as backup:
        report = convert_file(task.source, task.source, overwrite=True, **options)
    return Outcome(task, result_of(report), report, backup=str(backup))


def _converted_folder(task: Task, options: Mapping[str, Any], dry_run: bool) -> Outcome:
    from ..distributed.convert_folder import convert_distributed

    done = convert_distributed(task.source, task.target, in_place=task.in_place, dry_run=dry_run, **options)
    backup = None if done.backup is None else str(done.backup)
    return Outcome(task, result_of(done.report), done.report, backup=backup)


def _copied(task: Task, dry_run: bool) -> Outcome:
    assert task.target is not None
    if not dry_run:
        _copy(task.source, task.target)
    return Outcome(task, Result.COPIED, Report())


def _copy(source: Path, target: Path) -> None:
    with open(source, "rb") as file, whole_file(str(target), os.stat(source)) as new:
        shutil.copyfileobj(file, new, _CHUNK)


@contextlib.contextmanager
def _backup(path: Path) -> Iterator[Path]:
    """Keep what ``path`` holds under a new name, that of the block; not if the block raises, for nothing changed then.

    It is a second link to the same bytes, or where there are no links a copy.
    """
    path = Path(os.path.realpath(path))
    before = path.stat()
    backup = _backed_up(path)
    try:
        yield backup
    except BaseException:
        with contextlib.suppress(OSError):
            if os.path.samestat(before, path.stat()):
                backup.unlink()
        raise


def _backed_up(path: Path) -> Path:
    for number in range(10_000):
        backup = path.with_name(f"{path.name}.bak{number or ''}")
        try:
            os.link(path, backup)
        except FileExistsError:
            continue
        except OSError:
            if os.path.lexists(backup):
                continue
            _copy(path, backup)
        return backup
    raise CannotConvert(f"{path} has ten thousand backups; move some away")
