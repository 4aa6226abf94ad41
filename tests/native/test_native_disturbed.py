"""Rewritten programs at overflows and with other options; and nothing in a rewrite is there for nothing.

Takes minutes, so it runs only when asked for: ``python -m pytest tests/native -m slow``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from comparing import compare
from expected import DROPIN, EXPECTED
from mutants import survivors
from overflows import accumulates, disagreements
from runs import UNDISTURBED, program_name, program_paths, rewrite_program, run, run_all

#: what may come out native
MAYBE = [path for path in program_paths() if EXPECTED[program_name(path)].verdict != DROPIN]
WITH_OPTIONS = [(path, args) for path in program_paths() for args in EXPECTED[program_name(path)].arguments]

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def only_when_asked_for(request: pytest.FixtureRequest) -> None:
    if "slow" not in request.config.option.markexpr:
        pytest.skip("python -m pytest tests/native -m slow")


@pytest.mark.parametrize("main", MAYBE, ids=program_name)
def test_at_an_overflow_both_skip_the_same_steps(main: Path, tmp_path: Path) -> None:
    rewritten = rewrite_program(main, tmp_path)
    if not rewritten.is_native:
        pytest.skip("on the drop-in")
    expected = EXPECTED[program_name(main)]
    assert disagreements(main, rewritten.main, tmp_path, expected, run(main, tmp_path)) == []


@pytest.mark.parametrize(
    "main, arguments", WITH_OPTIONS, ids=lambda x: program_name(x) if isinstance(x, Path) else None
)
def test_with_other_options_it_trains_the_same(main: Path, arguments: tuple[str, ...], tmp_path: Path) -> None:
    rewritten = rewrite_program(main, tmp_path)
    expected = EXPECTED[program_name(main)]
    original, new = run_all([(path, tmp_path, UNDISTURBED, arguments) for path in (main, rewritten.main)])
    found = compare(original, new)
    assert found.agrees(expected, accumulates(original)), str(found)


@pytest.mark.parametrize("main", MAYBE, ids=program_name)
def test_whatever_is_taken_out_of_the_rewrite_is_missed(main: Path, tmp_path: Path) -> None:
    rewritten = rewrite_program(main, tmp_path)
    if not rewritten.is_native:
        pytest.skip("on the drop-in")
    if EXPECTED[program_name(main)].is_off:
        pytest.skip("amp is off in a plain run of it")
    assert survivors(main, rewritten, tmp_path, EXPECTED[program_name(main)]) == []
