"""Before/after pairs of the native rewrite, and code that must stay as it is, as folders under ``fixtures/rewrite``."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from amp_migrate.codemods.findings import Level
from amp_migrate.codemods.target import Target
from amp_migrate.rewrite import Outcome, Settings, rewrite_source
from amp_migrate.rewrite.proofs import assert_names_defined

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "rewrite"
PAIRS = sorted(folder.parent for folder in FIXTURES.glob("*/before.py"))
UNCHANGED = sorted(folder.parent for folder in FIXTURES.glob("*/unchanged.py"))


def settings_of(folder: Path) -> Settings:
    """``settings.txt`` has a line ``key = value`` for each field of Target that isn't its default."""
    file = folder / "settings.txt"
    lines = file.read_text().splitlines() if file.exists() else []
    given = dict(line.split(" = ") for line in lines)
    assert set(given) <= {each.name for each in fields(Target)}
    return Settings(Target(**{key: _value(key, text) for key, text in given.items()}))


def _value(key: str, text: str) -> Any:
    if key == "torch":
        major, minor = text.split(".")
        return int(major), int(minor)
    if key == "level":
        return Level(text)
    return text == "true" if text in ("true", "false") else text


def expected_findings(folder: Path) -> list[str]:
    """``findings.txt`` has a line ``LINE:COL CODE`` for each finding, notes included; without it there is none."""
    file = folder / "findings.txt"
    return file.read_text().splitlines() if file.exists() else []


def is_native(folder: Path) -> bool:
    """Return whether no call of amp is left in what becomes of ``before.py``."""
    after = (folder / "after.py").read_text()
    return "amp_migrate.apex import amp" not in after and "GradScaler" in after


@pytest.mark.parametrize("folder", PAIRS, ids=lambda folder: folder.name)
def test_before_becomes_after_and_the_rest_is_reported(folder: Path) -> None:
    result = rewrite_source((folder / "before.py").read_bytes(), settings_of(folder))
    assert result.source.decode() == (folder / "after.py").read_text()
    assert result.outcome is Outcome.CHANGED
    assert [f"{each.line}:{each.col} {each.code}" for each in result.findings] == expected_findings(folder)


@pytest.mark.parametrize("folder", UNCHANGED, ids=lambda folder: folder.name)
def test_it_stays_as_it_is_and_is_reported(folder: Path) -> None:
    source = (folder / "unchanged.py").read_bytes()
    result = rewrite_source(source, settings_of(folder))
    assert result.source == source
    assert [f"{each.line}:{each.col} {each.code}" for each in result.findings] == expected_findings(folder)
    assert result.outcome is (Outcome.NEEDS_PERSON if result.findings else Outcome.UNCHANGED)
    assert not result.edits


@pytest.mark.parametrize("folder", PAIRS, ids=lambda folder: folder.name)
def test_a_second_run_changes_nothing(folder: Path) -> None:
    after = (folder / "after.py").read_bytes()
    second = rewrite_source(after, settings_of(folder))
    assert second.source == after
    assert not second.edits


@pytest.mark.parametrize("folder", PAIRS, ids=lambda folder: folder.name)
def test_before_and_after_compile_and_no_name_is_lost(folder: Path) -> None:
    before, after = (folder / "before.py").read_bytes(), (folder / "after.py").read_bytes()
    for name, source in (("before.py", before), ("after.py", after)):
        compile(source, name, "exec", dont_inherit=True)
    assert_names_defined(before, after)


def test_there_are_at_least_as_many_that_stay_as_become_native() -> None:
    native = [folder for folder in PAIRS if is_native(folder)]
    assert len(native) >= 45
    assert len(PAIRS) + len(UNCHANGED) - len(native) >= 45
