"""``--in-place``: the backup, what isn't touched, and what is left when the process is killed."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import clean_environment

from amp_migrate.convert.command import working

from .commands import SCALE, Run, Touches, amp_state, names, native, old, read, run

__all__ = ["run"]


def test_the_file_is_replaced_and_the_old_one_stays(tmp_path: Path, run: Run) -> None:
    source = old(tmp_path / "old.pt")
    before = source.read_bytes()
    ran = run(source, "--in-place")
    assert ran.code == 0
    assert f"the old file is {tmp_path / 'old.pt.bak'}" in ran.out
    assert (tmp_path / "old.pt.bak").read_bytes() == before
    assert read(source)["amp"] == SCALE
    assert names(tmp_path) == ["old.pt", "old.pt.bak"]


def test_a_backup_is_never_overwritten(tmp_path: Path, run: Run) -> None:
    source = old(tmp_path / "old.pt")
    (tmp_path / "old.pt.bak").write_text("mine")
    (tmp_path / "old.pt.bak1").symlink_to("nowhere")
    before = source.read_bytes()
    (file,) = run(source, "--in-place", "--json").json["files"]
    assert file["backup"] == str(tmp_path / "old.pt.bak2")
    assert (tmp_path / "old.pt.bak").read_text() == "mine"
    assert (tmp_path / "old.pt.bak2").read_bytes() == before


def test_a_second_backup_is_another_file(tmp_path: Path, run: Run) -> None:
    source = old(tmp_path / "old.pt", epoch=1)
    run(source, "--in-place")
    old(source, epoch=2)
    run(source, "--in-place")
    epochs = [torch.load(tmp_path / name)["epoch"] for name in ("old.pt.bak", "old.pt.bak1")]
    assert epochs == [1, 2]


def test_permissions_are_kept_on_both(tmp_path: Path, run: Run) -> None:
    source = old(tmp_path / "old.pt")
    source.chmod(0o640)
    run(source, "--in-place")
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in names(tmp_path)} == {0o640}


def test_an_unchanged_file_is_not_touched(tmp_path: Path, run: Run) -> None:
    source = native(tmp_path / "new.pt")
    before = source.stat()
    ran = run(source, "--in-place")
    assert ran.code == 0 and "left as it is" in ran.out
    after = source.stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert names(tmp_path) == ["new.pt"]


def test_a_file_of_which_everything_is_kept_is_not_touched_and_the_report_says_why(tmp_path: Path, run: Run) -> None:
    group = {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.0, "bias_correction": True, "step": 3}
    group = {**group, "grad_averaging": True, "max_grad_norm": 1.0, "params": [0]}
    moments = {"exp_avg": torch.zeros(2), "exp_avg_sq": torch.zeros(2)}
    torch.save({"optimizer": {"state": {0: moments}, "param_groups": [group]}}, tmp_path / "lamb.pt")
    ran = run(tmp_path / "lamb.pt", "--in-place")
    assert ran.code == 0 and "nothing to convert" in ran.out and "FusedLAMB" in ran.out
    assert names(tmp_path) == ["lamb.pt"]


def test_a_second_run_does_nothing(tmp_path: Path, run: Run) -> None:
    (tmp_path / "run").mkdir()
    old(tmp_path / "run" / "a.pt")
    run(tmp_path / "run", "--in-place")
    before = {name: (tmp_path / "run" / name).read_bytes() for name in names(tmp_path / "run")}
    assert run(tmp_path / "run", "--in-place").code == 0
    assert {name: (tmp_path / "run" / name).read_bytes() for name in names(tmp_path / "run")} == before


def test_other_files_of_a_folder_are_left_alone(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    old(folder / "a.pt")
    (folder / "log.txt").write_text("log")
    (folder / "data.zip").write_bytes(b"PK\x03\x04rest")
    ran = run(folder, "--in-place")
    assert ran.code == 0
    assert names(folder) == ["a.pt", "a.pt.bak", "data.zip", "log.txt"]
    assert (folder / "data.zip").read_bytes() == b"PK\x03\x04rest"


def test_dry_run_makes_no_backup(tmp_path: Path, run: Run) -> None:
    source = old(tmp_path / "old.pt")
    before = source.read_bytes()
    assert run(source, "--in-place", "--dry-run").code == 0
    assert names(tmp_path) == ["old.pt"] and source.read_bytes() == before


def test_a_refused_file_stays_and_gets_no_backup(tmp_path: Path, run: Run) -> None:
    source = old(tmp_path / "old.pt", hook=Touches(tmp_path / "canary"))
    before = source.read_bytes()
    assert run(source, "--in-place").code == 2
    assert names(tmp_path) == ["old.pt"] and source.read_bytes() == before


def test_a_link_stays_one_and_its_file_is_converted_once(tmp_path: Path, run: Run) -> None:
    source = old(tmp_path / "epoch3.pt")
    (tmp_path / "last.pt").symlink_to("epoch3.pt")
    ran = run(tmp_path, "--in-place", "--jobs", 2)
    assert ran.code == 0
    assert (tmp_path / "last.pt").is_symlink()
    assert read(source)["amp"] == SCALE
    assert names(tmp_path) == ["epoch3.pt", "epoch3.pt.bak", "last.pt"]


def test_where_there_are_no_links_the_backup_is_a_copy(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*arguments: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    source = old(tmp_path / "old.pt")
    before = source.read_bytes()
    (tmp_path / "old.pt.bak").write_text("mine")
    assert run(source, "--in-place").code == 0
    assert (tmp_path / "old.pt.bak1").read_bytes() == before
    assert (tmp_path / "old.pt.bak").read_text() == "mine"


def test_a_backup_stays_if_the_error_comes_after_the_replacing(tmp_path: Path) -> None:
    source = old(tmp_path / "old.pt")
    before = source.read_bytes()
    with pytest.raises(KeyboardInterrupt), working._backup(source) as backup:
        (tmp_path / "other").write_text("new")
        os.replace(tmp_path / "other", source)
        raise KeyboardInterrupt
    assert backup.read_bytes() == before


# kill -9

WAITING = """
import sys
from amp_migrate.convert import file, options, writing
from amp_migrate.convert.command import main, outcome, tasks, text, working
print("ready", flush=True)
sys.stdin.readline()
sys.exit(main.main(sys.argv[1:]))
"""


def _started(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WAITING, *map(str, arguments)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=clean_environment()
    )
    assert process.stdout is not None and process.stdin is not None
    process.stdout.readline()
    return process


def _run_for(seconds: float | None, *arguments: object) -> tuple[int, float]:
    """Run the command, kill it after a time, and return its exit code and the seconds that it took."""
    process = _started(*arguments)
    start = time.perf_counter()
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    if seconds is not None:
        time.sleep(seconds)
        process.kill()
    process.communicate()
    return process.returncode, time.perf_counter() - start


def _is_complete(path: Path) -> bool:
    state = read(path)
    return bool(state["amp"] == SCALE and state["big"].equal(BIG))


KILLS = 15
BIG = torch.arange(6_000_000, dtype=torch.float32)


def test_a_killed_run_leaves_the_old_or_the_new_and_a_whole_backup(tmp_path: Path) -> None:
    kept = old(tmp_path / "kept.pt", big=BIG)
    before = kept.read_bytes()
    chance = random.Random(5)
    folder = tmp_path / "run"
    folder.mkdir()
    source = folder / "old.pt"
    duration = None
    killed = 0
    for number in range(60):
        for name in names(folder):
            (folder / name).unlink()
        source.write_bytes(before)
        in_place = number % 3 != 2
        arguments = (source, "--in-place") if in_place else (source, folder / "new.pt")
        code, seconds = _run_for(None if duration is None else chance.uniform(0.0, duration), *arguments)
        if code == -signal.SIGKILL:
            killed += 1
        else:
            duration = min(seconds, duration or seconds)
        left = {name for name in names(folder) if not name.endswith(".amp_migrate.tmp")}
        assert left <= ({"old.pt", "old.pt.bak"} if in_place else {"old.pt", "new.pt"})
        assert source.read_bytes() == before or (in_place and _is_complete(source) and "old.pt.bak" in left)
        assert "old.pt.bak" not in left or (folder / "old.pt.bak").read_bytes() == before
        assert "new.pt" not in left or _is_complete(folder / "new.pt")
        if killed == KILLS:
            return
    pytest.fail(f"only {killed} runs could be killed")


def test_after_a_kill_the_same_command_works(tmp_path: Path, run: Run) -> None:
    source = old(tmp_path / "old.pt")
    (tmp_path / ".old.pt.abc.amp_migrate.tmp").write_bytes(b"half")
    os.link(source, tmp_path / "old.pt.bak")
    assert run(source, "--in-place").code == 0
    assert read(source)["amp"] == SCALE
    assert amp_state() == torch.load(tmp_path / "old.pt.bak1")["amp"]
