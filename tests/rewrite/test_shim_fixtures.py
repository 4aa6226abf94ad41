"""Before/after pairs and programs that must not change, as folders under ``fixtures/shim``."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_migrate.codemods.target import SHIM, Target
from amp_migrate.rewrite import Outcome, Settings, rewrite_source

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "shim"
TO_SHIM = Settings(Target(to=SHIM))
PAIRS = sorted(folder.parent for folder in FIXTURES.glob("*/before.py"))
UNCHANGED = sorted(folder.parent for folder in FIXTURES.glob("*/unchanged.py"))


def expected_findings(folder: Path) -> list[str]:
    """``findings.txt`` has a line ``LINE:COL CODE`` for each place left for a person; without it there is none."""
    file = folder / "findings.txt"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.parametrize("folder", PAIRS, ids=lambda folder: folder.name)
def test_before_becomes_after_and_the_rest_is_reported(folder: Path) -> None:
    result = rewrite_source((folder / "before.py").read_bytes(), TO_SHIM)
    assert result.source.decode() == (folder / "after.py").read_text()
    assert result.outcome is Outcome.CHANGED
    assert result.edits.get("AMP001", 0) >= 1
    assert [f"{each.line}:{each.col} {each.code}" for each in result.findings] == expected_findings(folder)


@pytest.mark.parametrize("folder", UNCHANGED, ids=lambda folder: folder.name)
def test_it_stays_as_it_is_and_is_reported(folder: Path) -> None:
    source = (folder / "unchanged.py").read_bytes()
    result = rewrite_source(source, TO_SHIM)
    assert result.source == source
    assert [f"{each.line}:{each.col} {each.code}" for each in result.findings] == expected_findings(folder)
    assert result.outcome is (Outcome.NEEDS_PERSON if result.findings else Outcome.UNCHANGED)
    assert not result.edits


@pytest.mark.parametrize("folder", PAIRS, ids=lambda folder: folder.name)
def test_a_second_run_changes_nothing_and_leaves_the_same_places(folder: Path) -> None:
    first = rewrite_source((folder / "before.py").read_bytes(), TO_SHIM)
    second = rewrite_source(first.source, TO_SHIM)
    assert second.source == first.source
    assert [each.message for each in second.findings] == [each.message for each in first.findings]


@pytest.mark.parametrize("folder", PAIRS, ids=lambda folder: folder.name)
def test_before_and_after_compile(folder: Path) -> None:
    for name in ("before.py", "after.py"):
        compile((folder / name).read_bytes(), name, "exec", dont_inherit=True)


def test_there_are_at_least_as_many_programs_that_stay_as_forms_that_change() -> None:
    assert len(PAIRS) >= 20
    assert len(UNCHANGED) >= 20
