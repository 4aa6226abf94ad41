"""Rewritten programs with one thing taken out: a step, update, unscale, scale, autocast region or custom_fwd."""

from __future__ import annotations

import ast
import copy
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator

from comparing import compare
from expected import Expected
from overflows import accumulates, disturbances
from runs import OVERFLOWING, UNDISTURBED, Rewritten, run, run_all


@dataclass(frozen=True)
class Mutant:
    """A source with one thing less."""

    file: str
    what: str
    source: str


def mutants(sources: dict[str, str]) -> Iterator[Mutant]:
    """Every mutant of every file, in source order."""
    for file, source in sorted(sources.items()):
        tree = ast.parse(source)
        for number, node in enumerate(ast.walk(tree)):
            taken = _taken_out(node)
            if taken is None:
                continue
            new = _Replace(number, taken).result(copy.deepcopy(tree))
            first = ast.unparse(node).splitlines()[0]
            yield Mutant(file, f"{file}:{getattr(node, 'lineno', 0)} without {first}", new)


def _taken_out(node: ast.AST) -> Callable[[ast.AST], object] | None:
    """What to put in place of ``node``: a function from the node to a node or a list of statements."""
    if isinstance(node, ast.Expr) and _scaler_call(node.value) in ("step", "update", "unscale_"):
        return lambda each: ast.Pass()
    if isinstance(node, ast.Call) and _scaler_call(node) == "scale":
        return lambda each: each.args[0]  # type: ignore[attr-defined]
    if isinstance(node, ast.With) and any(_opens_casts(item) for item in node.items):
        return _without_region
    return None


def _scaler_call(node: ast.AST) -> str:
    """The method's name if this is a call of a method of something that is called a scaler."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return ""
    return node.func.attr if "scaler" in ast.unparse(node.func.value).lower() else ""


def _opens_casts(item: ast.withitem) -> bool:
    """A region, but none that only switches casts off: on a CPU, that one's absence needn't show (SOUNDNESS 21)."""
    text = ast.unparse(item.context_expr)
    return "autocast(" in text and "enabled=False" not in text


def _without_region(node: ast.AST) -> object:
    assert isinstance(node, ast.With)
    items = [item for item in node.items if not _opens_casts(item)]
    return ast.With(items, node.body, lineno=0) if items else node.body


class _Replace:
    """Puts something in the place of the node with a certain number."""

    def __init__(self, number: int, taken: Callable[[ast.AST], object]) -> None:
        self.number = number
        self.taken = taken

    def result(self, tree: ast.Module) -> str:
        target = next(node for number, node in enumerate(ast.walk(tree)) if number == self.number)
        for parent in ast.walk(tree):
            for name, value in ast.iter_fields(parent):
                if value is target:
                    setattr(parent, name, self.taken(target))
                elif isinstance(value, list) and any(each is target for each in value):
                    place = next(i for i, each in enumerate(value) if each is target)
                    new = self.taken(target)
                    value[place : place + 1] = new if isinstance(new, list) else [new]
        return ast.unparse(ast.fix_missing_locations(tree))


def survivors(main: Path, rewritten: Rewritten, folder: Path, expected: Expected) -> list[str]:
    """The mutants that train as the drop-in does, undisturbed and at every overflow: nobody would notice them.

    Without the regions of which ``expected`` says that a CPU run can't notice them.
    """
    original = run(main, folder)
    order = [UNDISTURBED, *disturbances(original, expected)]
    if accumulates(original) or not expected.bitwise:
        order.remove(OVERFLOWING)  # there, even the rewrite itself may skip other steps
    left = list(mutants(rewritten.sources))
    for disturbance in order:
        if not left:
            break
        disturbed = run(main, folder, disturbance) if disturbance != UNDISTURBED else original
        paths = [_written(mutant, rewritten, Path(tempfile.mkdtemp(dir=folder))) for mutant in left]
        runs = run_all([(path, folder, disturbance) for path in paths])
        left = [
            mutant
            for mutant, found in zip(left, runs)
            if compare(disturbed, found).agrees(expected, accumulates(original))
        ]
    regions = [mutant for mutant in left if "autocast(" in mutant.what]
    silent = regions if len(regions) <= expected.silent_regions else []
    return [mutant.what for mutant in left if mutant not in silent]


def _written(mutant: Mutant, rewritten: Rewritten, folder: Path) -> Path:
    for name, source in rewritten.sources.items():
        (folder / name).write_text(mutant.source if name == mutant.file else source, encoding="utf-8")
    return folder / rewritten.main.name
