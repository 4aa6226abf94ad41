"""Convert a file into another one: open, convert, refuse what is foreign, write."""

from __future__ import annotations

import os
from typing import Any

from .foreign import drop_foreign, find_foreign, refuse_foreign
from .layouts import convert_tree, unchanged
from .layouts.read_objects import refuse_vanished
from .notes import Report
from .opening import open_checkpoint
from .options import Options


def convert_file(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, overwrite: bool = False, **options: Any
) -> Report:
    """Convert a checkpoint into a new file, which appears complete or not at all; return what was done.

    Args:
        source: a file that ``torch.save`` wrote, under any torch.
        target: the new file. ``torch.load(weights_only=True)`` takes it, unless classes of a trusted file are in it.
        overwrite: replace ``target`` if it is there; it may be ``source``.
        options: see ``Options``.

    Raises:
        CannotConvert: the state can't be carried, or not without an option that is missing; says which.
        Damaged: the source is no checkpoint, or a broken one.
        Unsafe: it needs something executed, and neither ``drop_unknown`` nor ``trust`` is set; names it and the place.
        OSError: one of them can't be read or written.
    """
    settings, report = Options(**options), Report()
    root = converted_tree(source, settings, report)
    if settings.trust and find_foreign(root):
        report.notes.clear()
        report.layouts.clear()
        _write_objects(executed(source, settings, report), source, target, overwrite)
        return report
    from .writing import write_checkpoint

    write_checkpoint(root, target, overwrite=overwrite, like=source)
    return report


def check_file(source: str | os.PathLike[str], **options: Any) -> Report:
    """Return what ``convert_file`` would do, up to the bytes that it would write, without writing anything.

    Raises:
        as ``convert_file``.
    """
    from .writing.pickling import Pickler

    settings, report = Options(**options), Report()
    root = converted_tree(source, settings, report)
    if settings.trust and find_foreign(root):
        report.notes.clear()
        report.layouts.clear()
        executed(source, settings, report)
    else:
        Pickler().dump(root)
    return report


def converted_tree(path: str | os.PathLike[str], settings: Options, report: Report) -> Any:
    """The tree of a file, converted. Foreign objects are in it only if the file is trusted.

    Raises:
        as ``convert_file``.
    """
    opened = open_checkpoint(path)
    report.notes.extend(opened.report.notes)
    root = convert_tree(opened.root, settings, report)
    if settings.drop_unknown:
        return _without_foreign(root, settings, report)
    if not settings.trust:
        refuse_foreign(root)
        refuse_vanished(opened.foreign, opened.root, root)
    return root


def _without_foreign(root: Any, settings: Options, report: Report) -> Any:
    notes = len(report.notes)
    kept = drop_foreign(root, report)
    if len(report.notes) > notes:
        report.notes[:] = [note for note in report.notes if note != unchanged(settings)]
    return kept


def executed(path: str | os.PathLike[str], settings: Options, report: Report) -> Any:
    """What a trusted file holds, executed and converted, as live objects."""
    from .state import converted
    from .trusted import execute

    return converted(execute(path, report), settings, report)


def _write_objects(obj: Any, source: str | os.PathLike[str], target: str | os.PathLike[str], overwrite: bool) -> None:
    """Write live objects with torch, as a whole or not at all."""
    import torch

    from ..whole_file import whole_file

    place = os.path.realpath(target)
    if os.path.exists(place) and not overwrite:
        raise FileExistsError(f"{place} exists already; name another file, or move it away")
    with whole_file(place, os.stat(source)) as file:
        torch.save(obj, file)
