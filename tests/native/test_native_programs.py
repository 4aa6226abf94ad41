"""Legacy programs, rewritten to native AMP, train as on the drop-in; what can't be shown to stays on the drop-in.

python -m pytest tests/native                        each program once, about a minute and a half
python -m pytest tests/native -m slow                overflows, other options, mutants: see test_native_disturbed.py
python tests/native/compare.py FILE…                 by hand, any program
python tests/native/make_records.py                  new records of the drop-in
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest
from comparing import compare
from expected import DROPIN, EITHER, EXPECTED, NATIVE
from overflows import accumulates
from recorded import RECORDS, differences, read
from runs import NATIVE as SETTINGS
from runs import Rewritten, Run, program_name, program_paths, rewrite_program, run_all

from amp_migrate.codemods.target import SHIM, Target
from amp_migrate.rewrite import Settings, rewrite_source

ALL = program_paths()
NAMES = [program_name(path) for path in ALL]


@pytest.fixture(scope="module")
def shared_folder() -> Path:
    return Path(tempfile.mkdtemp())


def sources_of(main: Path) -> list[Path]:
    return sorted(main.parent.glob("*.py")) if main.name == "main.py" else [main]


@functools.lru_cache(maxsize=None)
def rewritten(main: Path, folder: Path) -> Rewritten:
    return rewrite_program(main, Path(tempfile.mkdtemp(dir=folder)))


@functools.lru_cache(maxsize=None)
def both_runs(main: Path, folder: Path) -> tuple[Run, Run]:
    """On the drop-in, and as rewritten."""
    original, new = run_all([(main, folder), (rewritten(main, folder).main, folder)])
    return original, new


@pytest.mark.parametrize("main", ALL, ids=NAMES)
def test_it_becomes_native_where_that_is_right_and_only_there(main: Path, shared_folder: Path) -> None:
    verdict = EXPECTED[program_name(main)].verdict
    new = rewritten(main, shared_folder)
    if verdict != EITHER:
        assert (NATIVE if new.is_native else DROPIN) == verdict, [str(finding) for finding in new.findings]
    if not new.is_native:
        before = "".join(path.read_text(encoding="utf-8") for path in sources_of(main))
        assert "".join(new.sources.values()).count("GradScaler(") == before.count(
            "GradScaler("
        )  # never half a migration


@pytest.mark.parametrize("main", ALL, ids=NAMES)
def test_it_trains_as_on_the_drop_in(main: Path, shared_folder: Path) -> None:
    expected = EXPECTED[program_name(main)]
    original, new = both_runs(main, shared_folder)
    found = compare(original, new)
    assert found.agrees(expected, accumulates(original)), str(found)


@pytest.mark.parametrize("main", ALL, ids=NAMES)
def test_the_drop_in_does_what_is_recorded(main: Path, shared_folder: Path) -> None:
    assert differences(read(program_name(main)), both_runs(main, shared_folder)[0]) == []


@pytest.mark.parametrize("main", [path for path in ALL if path.name != "main.py"], ids=program_name)
def test_after_a_move_to_the_drop_in_it_becomes_native_as_well(main: Path, shared_folder: Path) -> None:
    moved = rewrite_source(main.read_bytes(), Settings(Target(to=SHIM)))
    again = rewrite_source(moved.source, SETTINGS)
    assert again.source.decode() == rewritten(main, shared_folder).sources[main.name]


def test_every_program_has_a_verdict_and_a_record() -> None:
    assert sorted(EXPECTED) == sorted(NAMES)
    assert sorted(path.stem for path in RECORDS.glob("*.json")) == sorted(NAMES)


def test_every_rule_has_a_program_and_the_last_a_test_of_its_own() -> None:
    shown = {rule for expected in EXPECTED.values() for rule in expected.rules}
    assert set(range(1, 29)) - shown == set()
