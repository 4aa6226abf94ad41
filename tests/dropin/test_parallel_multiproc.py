"""``python -m apex.parallel.multiproc`` starts a program once per process and tells it its rank."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from amp_migrate.aliases import _AliasLoader
from amp_migrate.apex.parallel import multiproc

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from apex import amp
print("told", sys.argv[1:])
sys.exit(3 if sys.argv[-1] == "1" else 0)
"""


by_alias = pytest.param(
    ["amp_migrate.run", "-m", "apex.parallel.multiproc"],
    marks=pytest.mark.skipif(not hasattr(_AliasLoader, "get_code"), reason="aliased modules can't be run with -m yet"),
)


@pytest.mark.parametrize("launch", [["amp_migrate.apex.parallel.multiproc"], by_alias])
def test_each_process_gets_its_rank_and_the_first_failure_is_the_exit_code(tmp_path, launch) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", *launch, "--nproc", "2", "train.py", "--lr", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=str(tmp_path), env=environment, stdout=subprocess.PIPE, timeout=120)
    told = "told ['--lr', '1', '--world-size', '2', '--rank', '{}']"
    assert told.format(0) in done.stdout.decode()
    assert told.format(1) in (tmp_path / "GPU_1.log").read_text()
    assert done.returncode == 3


def test_the_number_of_processes(monkeypatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(SystemExit, match="--nproc"):
        multiproc.number_of_processes(["main.py"])
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert multiproc.number_of_processes(["main.py"]) == 3
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert multiproc.number_of_processes(["main.py"]) == 4
    arguments = ["--nproc", "5", "main.py", "--nproc", "9"]
    assert multiproc.number_of_processes(arguments) == 5 and arguments == ["main.py", "--nproc", "9"]
    assert multiproc.number_of_processes(["main.py", "--world-size", "2"]) == 2


def test_given_options_are_replaced() -> None:
    given = ["main.py", "--rank", "7", "--world-size", "2", "-v"]
    assert multiproc.arguments_of(1, 2, given) == ["main.py", "--rank", "1", "--world-size", "2", "-v"]
