"""Legacy programs, as people wrote them, train to the end on the drop-in."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from conftest import PROGRAMS
from isolated import run_program

ALL = sorted([*PROGRAMS.glob("*.py"), *PROGRAMS.glob("*/main.py")])


def name(path: Path) -> str:
    return str(path.relative_to(PROGRAMS).with_suffix(""))


@pytest.mark.parametrize("program", ALL, ids=name)
def test_the_program_trains_to_the_end(program: Path, tmp_path: Path) -> None:
    outcome = run_program(tmp_path, str(program))
    assert outcome.code == 0, outcome.err
    final = re.fullmatch(r"final (\S+)", outcome.out.splitlines()[-1])
    assert final is not None and math.isfinite(float(final.group(1)))


@pytest.mark.parametrize("program", ALL, ids=name)
def test_the_program_never_mentions_us(program: Path) -> None:
    for path in [program, *([] if program.parent == PROGRAMS else program.parent.glob("*.py"))]:
        assert "amp_migrate" not in path.read_text(encoding="utf-8")


def test_every_program_is_in_the_readme() -> None:
    readme = (PROGRAMS / "README.md").read_text(encoding="utf-8")
    assert [p for p in ALL if p.relative_to(PROGRAMS).parts[0].replace("main.py", "") not in readme] == []


def test_running_twice_gives_the_same_bits(tmp_path: Path) -> None:
    first, second = (run_program(tmp_path, str(PROGRAMS / "gan_three_losses.py")).out for _ in range(2))
    assert first == second != ""
