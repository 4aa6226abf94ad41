"""Convert a folder of ``torch.distributed.checkpoint`` into another one, or in its place."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, Mapping

from ..errors import CannotConvert, Damaged
from ..file import check_file, convert_file
from ..foreign import drop_foreign, find_foreign, refuse_foreign
from ..layouts import convert_tree
from ..layouts.read_objects import refuse_vanished
from ..notes import Kind, Note, Report
from ..opening.sniffing import HEAD, ZIP_MAGIC
from ..options import Options
from .entries import Objects
from .metadata import Saved, read_metadata
from .nesting import nested
from .recognise import DATA, METADATA
from .replacing import check_free, replaced_folder, whole_folder
from .torch_api import check_torch, load_tensors, save_state


@dataclass(frozen=True)
class Done:
    """What was done, and where the old folder is if it was replaced."""

    report: Report
    backup: Path | None = None


def convert_distributed(
    source: Path, target: Path | None, *, in_place: bool = False, dry_run: bool = False, **options: Any
) -> Done:
    """Convert a folder; the new one appears complete or not at all.

    A folder without Apex state is copied as it is, and left as it is if it is to be replaced. Other files in the folder
    (Lightning's ``meta.pt``) are converted or copied beside. Everything is loaded into memory, as DCP does.

    Args:
        source: a folder with ``.metadata``.
        target: the new folder; not used ``in_place``.
        in_place: replace ``source``, which stays as ``NAME.bak``, ``NAME.bak1`` …
        dry_run: write nothing.
        options: see ``Options``.

    Raises:
        CannotConvert: this torch is too old, or the state can't be carried; says which.
        Damaged: the folder isn't complete, or broken.
        Unsafe: it needs something executed, and neither ``drop_unknown`` nor ``trust`` is set.
        OSError: one of them can't be read or written.
    """
    settings, report = Options(**options), Report()
    saved = read_metadata(source)
    check_torch()
    if target is not None and not in_place:
        check_free(target)
    with Objects() as objects:
        state = _converted(saved, objects, settings, report)
        others = list(_other_files(source))
        changed = [path for path in others if _is_changed(path, source, options, report)]
        if report.is_unchanged:
            _say_unchanged(report)
        else:
            report.add(Kind.KEPT, "", "saved by one process: torch.distributed.checkpoint divides it when it is loaded")
        if dry_run or (in_place and report.is_unchanged):
            return Done(report)
        backups: list[Path] = []
        with ExitStack() as stack:
            place = target if target is not None and not in_place else source
            made = stack.enter_context(replaced_folder(source, backups) if in_place else whole_folder(place, source))
            if report.is_unchanged:
                shutil.copytree(source, made, symlinks=True, dirs_exist_ok=True)
            else:
                save_state(state, made, place)
                _write_others(others, changed, source, made, options)
    return Done(report, backups[0] if backups else None)


def _converted(saved: Saved, objects: Objects, settings: Options, report: Report) -> Any:
    """Return the state of a folder, converted, as live objects."""
    from ..live import Live
    from ..state import converted

    opened = {name: objects.open(entry.file, name) for name, entry in saved.objects.items()}
    if settings.trust and find_foreign(opened):
        return converted(_nested(saved, _executed(saved, objects, opened, report)), settings, report)
    tree = Live().records(_nested(saved, opened))
    foreign = find_foreign(tree)
    new = convert_tree(tree, settings, report)
    if settings.drop_unknown:
        new = drop_foreign(new, report)
    else:
        refuse_foreign(new)
        refuse_vanished(foreign, tree, new)
    return Live().objects(new)


def _executed(saved: Saved, objects: Objects, opened: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Return the entries as live objects. Only those that ask for it are executed; a note names them."""
    from ..live import Live
    from ..trusted import execute

    foreign = [name for name, value in opened.items() if find_foreign(value)]
    live = {name: Live().objects(value) for name, value in opened.items() if name not in foreign}
    for name in foreign:
        live[name] = execute(objects.copied(saved.objects[name].file), Report())
        report.add(Kind.KEPT, name, "the folder was trusted: classes and functions that this names were executed")
    return live


def _nested(saved: Saved, objects: Mapping[str, Any]) -> Any:
    tensors = load_tensors(saved)
    return nested({name: tensors[name] if name in tensors else objects[name] for name in saved.entries}, saved.ways)


def _say_unchanged(report: Report) -> None:
    if not report.notes:
        report.add(Kind.KEPT, "", "no state of Apex in the folder: unchanged")


def _other_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != DATA and path != folder / METADATA:
            yield path


def _is_changed(path: Path, folder: Path, options: Any, report: Report) -> bool:
    """Whether a file beside the data is a checkpoint that changes. Notes on it go to ``report``."""
    with open(path, "rb") as file:
        head = file.read(HEAD)
    if not head.startswith(ZIP_MAGIC):
        return False
    try:
        found = check_file(path, **options)
    except Damaged:  # a zip file of another kind
        return False
    except CannotConvert as error:
        raise type(error)(f"{path.relative_to(folder)}: {str(error).replace(f'{path}: ', '', 1)}") from error
    if found.is_unchanged:
        return False
    name = os.fspath(path.relative_to(folder))
    report.layouts.extend(found.layouts)
    report.is_edited = report.is_edited or found.is_edited
    report.notes.extend(Note(note.kind, f"{name}: {note.place}".rstrip(": "), note.text) for note in found.notes)
    return True


def _write_others(others: list[Path], changed: list[Path], source: Path, made: Path, options: Any) -> None:
    for path in others:
        new = made / path.relative_to(source)
        new.parent.mkdir(parents=True, exist_ok=True)
        if path in changed:
            convert_file(path, new, **options)
        else:
            shutil.copy2(path, new)
