"""What all tests share: the environment that child processes get, and a clean slate after each test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "fixtures" / "programs"


def clean_environment(**extra: str) -> dict[str, str]:
    """This environment without our own variables, with the project importable."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("AMP_MIGRATE")}
    env["PYTHONPATH"] = str(ROOT)
    env.update(extra)
    return env


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run this Python with arguments, in an empty folder unless told otherwise; text output is captured."""

    def run(*args: str, cwd: Path = tmp_path, timeout: float = 300, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *args]
        return subprocess.run(
            command, cwd=cwd, env=clean_environment(**env), capture_output=True, text=True, timeout=timeout
        )

    return run


@pytest.fixture(autouse=True)
def nothing_stays_installed() -> Iterator[None]:
    """Take the drop-in back after each test, whether or not it was installed."""
    yield
    finder: Any = sys.modules.get("amp_migrate.finder")
    if finder is not None:
        finder.uninstall()
    if "amp_migrate.apex.amp" in sys.modules:
        from amp_migrate.finder import restore_torch

        restore_torch()
