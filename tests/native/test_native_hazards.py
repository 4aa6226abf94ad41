"""Small programs, each with a trap for a rewriter: what becomes native trains as on the drop-in, with all options."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from comparing import compare
from expected import EITHER, Expected
from overflows import accumulates
from runs import NATIVE, ROOT, UNDISTURBED, rewrite_program, run_all

from amp_migrate.rewrite import Outcome, rewrite_source

HAZARDS = sorted((ROOT / "fixtures" / "hazards").glob("*.py"))
#: a model that is called twice in a region is cast once there, and once per call on the drop-in
TO_ROUNDING = Expected(EITHER, bitwise=False, same_output=False, same_traces=False)


def command_lines(program: Path) -> list[tuple[str, ...]]:
    lines = program.read_text(encoding="utf-8").splitlines()
    return [tuple(line[len("# args:") :].split()) for line in lines if line.startswith("# args:")] or [()]


@pytest.mark.parametrize("program", HAZARDS, ids=lambda path: path.stem)
def test_what_becomes_native_trains_as_on_the_drop_in(program: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        new = rewrite_program(program, folder)
        if not new.is_native:
            return  # then it is the drop-in's own program
        for arguments in command_lines(program):
            original, native = run_all(
                [(program, folder, UNDISTURBED, arguments), (new.main, folder, UNDISTURBED, arguments)]
            )
            found = compare(original, native)
            assert found.agrees(TO_ROUNDING, accumulates(original)), f"{arguments}: {found}"


@pytest.mark.parametrize("program", HAZARDS, ids=lambda path: path.stem)
def test_it_is_never_left_unwritten_and_a_second_run_changes_nothing(program: Path) -> None:
    first = rewrite_source(program.read_bytes(), NATIVE)
    assert first.outcome is Outcome.CHANGED, first.reason
    review = replace(NATIVE, target=replace(NATIVE.target, device_type="cuda"))
    assert rewrite_source(program.read_bytes(), review).outcome is Outcome.CHANGED
    assert rewrite_source(first.source, NATIVE).source == first.source
