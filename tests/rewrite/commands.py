"""What the tests of the command share: a small project, and ways to run the command on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OLD = b"from apex import amp\n"
NEW = b"from amp_migrate.apex import amp\n"
PYTHON_PATH = {**os.environ, "PYTHONPATH": str(ROOT)}


def command(*arguments: str, cwd: Path, stdin: bytes = b"", **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "amp_migrate.rewrite", *arguments],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        env={**PYTHON_PATH, **variables},
        check=False,
    )


def git(folder: Path, *arguments: str) -> None:
    """Run git as somebody."""
    name = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "-C", str(folder), *name, *arguments], check=True, capture_output=True)


def make_project(folder: Path) -> None:
    """Fill ``folder`` with one file that changes, one that is split, one without Apex, and one that can't change."""
    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_bytes(OLD)
    (folder / "src" / "model.py").write_bytes(b"from apex import amp, transformer\r\n")
    (folder / "src" / "other.py").write_bytes(b"import torch\r\n")
    (folder / "src" / "ddp.py").write_bytes(b"import os\nfrom apex.transformer import DistributedDataParallel\n")


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return the content and the time of every file."""
    return {str(f): (f.read_bytes(), f.stat().st_mtime_ns) for f in folder.rglob("*") if f.is_file()}
