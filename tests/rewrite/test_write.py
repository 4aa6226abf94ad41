"""Files are replaced as a whole, or not at all."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from amp_migrate.rewrite.write import replace_bytes

ROOT = Path(__file__).resolve().parents[2]


def test_content_is_replaced_and_permissions_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_bytes(b"old")
    file.chmod(0o754)
    replace_bytes(str(file), b"new", expected=b"old")
    assert file.read_bytes() == b"new"
    assert file.stat().st_mode & 0o7777 == 0o754
    assert [each.name for each in tmp_path.iterdir()] == ["x.py"]


def test_a_symbolic_link_stays_one_and_its_target_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "real" / "x.py"
    target.parent.mkdir()
    target.write_bytes(b"old")
    link = tmp_path / "link.py"
    link.symlink_to(target)
    replace_bytes(str(link), b"new", expected=b"old")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_a_read_only_file_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_bytes(b"old")
    file.chmod(0o444)
    with pytest.raises(PermissionError, match="read-only"):
        replace_bytes(str(file), b"new", expected=b"old")
    assert file.read_bytes() == b"old"


def test_a_file_that_somebody_else_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_bytes(b"newer")
    with pytest.raises(OSError, match="meantime"):
        replace_bytes(str(file), b"new", expected=b"old")
    assert file.read_bytes() == b"newer"


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_after_an_error_the_old_file_is_there_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    file = tmp_path / "x.py"
    file.write_bytes(b"old")

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match="No space"):
        replace_bytes(str(file), b"new", expected=b"old")
    assert file.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["x.py"]


WRITER = """
import sys
from amp_migrate.rewrite.write import replace_bytes
old, new = b"old\\n" * 500_000, b"new, and longer\\n" * 300_000
print("ready", flush=True)
while True:
    for before, after in ((old, new), (new, old)):
        for path in sys.argv[1:]:
            replace_bytes(path, after, expected=before)
"""


def test_kill_9_leaves_every_file_either_old_or_new(tmp_path: Path) -> None:
    old, new = b"old\n" * 500_000, b"new, and longer\n" * 300_000
    files = [tmp_path / f"{number}.py" for number in range(3)]
    seen = set()
    for _ in range(50):
        for file in files:
            file.write_bytes(old)
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, *map(str, files)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(random.uniform(0, 0.03))
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        child.stdout.close()
        contents = [file.read_bytes() for file in files]
        assert all(content in (old, new) for content in contents)
        seen.update(contents)
        for leftover in tmp_path.glob(".*.tmp"):
            leftover.unlink()
    assert seen == {old, new}  # the kills did fall between the writes
