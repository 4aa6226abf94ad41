"""``--inspect``: what a file holds as a tree, who wrote it, and which opt level its weights betray."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

from ..distributed.described import tree_of_folder
from ..distributed.entries import Objects
from ..errors import CannotConvert, Damaged
from ..foreign import find_foreign
from ..layouts import LAYOUTS, convert_tree
from ..layouts.editing import Tree
from ..layouts.kinds import is_weights, models_in
from ..layouts.weights import opt_level
from ..notes import Report
from ..opening import open_checkpoint
from ..options import Options
from ..records import Tensor
from ..tree import walk
from .said import printable, said, without_path
from .tasks import checkpoints_below, is_named_checkpoint
from .tree_text import human_size, storage_bytes, tree_lines

_OK, _WRONG = 0, 2


@dataclass(frozen=True)
class Found:
    """What ``--inspect`` says of one file besides the tree."""

    file: str
    format: str
    writer: dict[str, Any]
    tensors: int
    bytes_of_tensors: int
    layouts: list[dict[str, str]]
    opt_level: str | None
    foreign: dict[str, tuple[str, ...]]
    #: why it can't be converted without further options
    problem: str | None


def inspect_files(paths: Sequence[Path], as_json: bool) -> int:
    """Print what each file holds; of a folder, each checkpoint in it. Returns the exit code."""
    code = _OK
    found: list[dict[str, Any]] = []
    for path, is_asked_for in _files(paths):
        with Objects() as objects:
            try:
                about, root = _opened(path, objects)
            except (CannotConvert, OSError) as error:
                if is_asked_for or not isinstance(error, Damaged):
                    text = said(error, path) if isinstance(error, OSError) else without_path(str(error), path)
                    print(printable(f"{path}: {text}"), file=sys.stderr)
                    code = _WRONG
                continue
            if as_json:
                found.append({**asdict(about), "tree": list(tree_lines(root))})
            else:
                print(printable("\n".join([*_heading(about), *tree_lines(root)])))
    if as_json:
        print(json.dumps(found, indent=2))
    return code


def _files(paths: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield the files, and whether a name says that they are checkpoints."""
    for path in paths:
        if path.is_dir():
            for each in checkpoints_below(path):
                yield each, is_named_checkpoint(each)
        else:
            yield path, True


def _opened(path: Path, objects: Objects) -> tuple[Found, Any]:
    if path.is_dir():
        root = tree_of_folder(path, objects)
        return _about(path, root, "folder of torch.distributed.checkpoint", {}, find_foreign(root)), root
    opened = open_checkpoint(path)
    return _about(path, opened.root, f"{opened.format_name} file", opened.writer, opened.foreign), opened.root


def _about(path: Path, root: Any, kind: str, writer: Mapping[str, Any], foreign: Mapping[str, Any]) -> Found:
    storages = {value.storage for value, _ in walk(root) if isinstance(value, Tensor)}
    tensors = sum(isinstance(value, Tensor) for value, _ in walk(root))
    size = sum(storage_bytes(storage) for storage in storages)
    found = Found(str(path), kind, dict(writer), tensors, size, [], _level(root), dict(foreign), None)
    return _recognised(root, found)


def _recognised(root: Any, found: Found) -> Found:
    """Try the conversion, for what it finds on the way. It may ask for an option; that is said as well."""
    report, problem = Report(), None
    try:
        convert_tree(root, Options(), report)
    except CannotConvert as error:
        problem = str(error)
    layouts = {layout.name: layout for layout in LAYOUTS["native"]}
    known = [layouts[name] for name in report.layouts if name in layouts]
    rows = [{"name": each.name, "writer": each.writer, "years": each.years, "source": each.source} for each in known]
    return replace(found, layouts=rows, problem=problem)


def _level(root: Any) -> str | None:
    """Return the opt level that the weights betray. None where the values can't be read."""
    states = [spot.node for spot in models_in(Tree(root))]
    if not any(is_weights(state) for state in states):
        return None
    try:
        return opt_level(states)
    except (ImportError, CannotConvert):
        return None


_LEVELS = {
    "O2 or O3": "all values fit float16: O2 or O3 wrote them, and the float32 masters aren't in the file",
    "O0 or O1": "float32 values that don't fit float16: O0 or O1, or no Apex at all",
    "half": "float16 weights, as FP16_Optimizer and amp before 2019-08 saved them",
}


def _heading(found: Found) -> list[str]:
    writer = ", ".join(f"{name} {value}" for name, value in found.writer.items())
    lines = [f"{found.file}: {found.format}{f' ({writer})' if writer else ''}"]
    lines.append(f"  {found.tensors} tensors, {human_size(found.bytes_of_tensors)}")
    for row in found.layouts:
        lines.append(f"  holds {row['name']}: {row['writer']} ({row['years']})")
    if not found.layouts:
        lines.append("  nothing of Apex was recognised")
    if found.opt_level is not None:
        lines.append(f"  weights: {_LEVELS[found.opt_level]}")
    for name, places in list(found.foreign.items()):
        lines.append(f"  foreign: {name} at {', '.join(places[:3])}{' …' if len(places) > 3 else ''}")
    if found.problem is not None:
        lines.append(f"  converting it: {found.problem}")
    return [*lines, ""]
