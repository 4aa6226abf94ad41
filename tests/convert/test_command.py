"""One file on the command line: where it goes, what the options do, and what errors say."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from amp_migrate.cli import main as umbrella

from .commands import SCALE, Run, amp_state, names, native, old, read, run, sample

__all__ = ["run"]


def test_a_file_alone_is_written_beside_itself(tmp_path: Path, run: Run) -> None:
    source = old(tmp_path / "old.pt")
    before = source.read_bytes()
    ran = run(source)
    assert (ran.code, ran.err) == (0, "")
    assert str(tmp_path / "old.native.pt") in ran.out
    assert source.read_bytes() == before
    assert read(tmp_path / "old.native.pt")["amp"] == SCALE


@pytest.mark.parametrize(
    ("name", "becomes"),
    [
        ("best.pth.tar", "best.native.pth.tar"),
        ("pytorch_model.bin", "pytorch_model.native.bin"),
        ("checkpoint", "checkpoint.native.pt"),
        ("step_0.5", "step_0.5.native.pt"),
        ("loss=0.25.CKPT", "loss=0.25.native.CKPT"),
    ],
)
def test_the_name_beside_keeps_its_endings(tmp_path: Path, run: Run, name: str, becomes: str) -> None:
    old(tmp_path / name)
    assert run(tmp_path / name).code == 0
    assert names(tmp_path) == sorted([name, becomes])


def test_two_paths_are_source_and_target(tmp_path: Path, run: Run) -> None:
    source = old(tmp_path / "old.pt")
    assert run(source, tmp_path / "new.pt").code == 0
    assert read(tmp_path / "new.pt")["amp"] == SCALE
    assert names(tmp_path) == ["new.pt", "old.pt"]


def test_options_may_stand_between_source_and_target(tmp_path: Path, run: Run) -> None:
    source = old(tmp_path / "old.pt")
    assert run(source, "--static-scale", tmp_path / "new.pt").code == 0
    assert names(tmp_path) == ["new.pt", "old.pt"]


def test_a_folder_as_target_gets_the_file_under_its_name(tmp_path: Path, run: Run) -> None:
    source = old(tmp_path / "old.pt")
    (tmp_path / "there").mkdir()
    assert run(source, tmp_path / "there").code == 0
    assert run(source, f"{tmp_path / 'made'}/").code == 0
    assert names(tmp_path) == ["made", "made/old.pt", "old.pt", "there", "there/old.pt"]


@pytest.mark.parametrize("option", ["-o", "--output"])
def test_output_names_the_target(tmp_path: Path, run: Run, option: str) -> None:
    source = old(tmp_path / "old.pt")
    assert run(source, option, tmp_path / "new.pt").code == 0
    assert read(tmp_path / "new.pt")["amp"] == SCALE


def test_three_files_are_each_written_beside_themselves(tmp_path: Path, run: Run) -> None:
    sources = [old(tmp_path / f"{name}.pt") for name in "abc"]
    ran = run(*sources)
    assert ran.code == 0
    assert "3 converted" in ran.out
    assert all(read(tmp_path / f"{name}.native.pt")["amp"] == SCALE for name in "abc")


def test_two_files_with_output_go_into_the_folder(tmp_path: Path, run: Run) -> None:
    sources = [old(tmp_path / f"{name}.pt") for name in "ab"]
    assert run(*sources, "--output", tmp_path / "new").code == 0
    assert names(tmp_path / "new") == ["a.pt", "b.pt"]


def test_two_files_that_would_become_one_are_refused(tmp_path: Path, run: Run) -> None:
    (tmp_path / "run").mkdir()
    sources = [old(tmp_path / "a.pt"), old(tmp_path / "run" / "a.pt")]
    ran = run(*sources, "--output", tmp_path / "new")
    assert ran.code == 2
    assert "would both become" in ran.err
    assert not (tmp_path / "new").exists()


def test_permissions_are_kept(tmp_path: Path, run: Run) -> None:
    source = old(tmp_path / "old.pt")
    source.chmod(0o640)
    run(source)
    assert stat.S_IMODE((tmp_path / "old.native.pt").stat().st_mode) == 0o640


def test_a_native_file_comes_out_as_it_was_and_that_is_said(tmp_path: Path, run: Run) -> None:
    ran = run(native(tmp_path / "new.pt"))
    assert ran.code == 0
    assert "nothing to convert" in ran.out
    assert read(tmp_path / "new.native.pt")["scaler"] == SCALE


def test_dry_run_says_what_would_be_done_and_writes_nothing(tmp_path: Path, run: Run) -> None:
    source = old(tmp_path / "old.pt")
    ran = run(source, "--dry-run")
    assert ran.code == 0
    assert "scale 1024" in ran.out and "--dry-run" in ran.out
    assert names(tmp_path) == ["old.pt"]


def test_dry_run_finds_the_errors_of_a_real_run(tmp_path: Path, run: Run) -> None:
    source = old(tmp_path / "old.pt")
    old(tmp_path / "old.native.pt")
    assert "exists already" in run(source, "--dry-run").err
    assert run(source, tmp_path / "nowhere" / "new.pt", "--dry-run").code == 2


def test_json_says_all_that_was_done(tmp_path: Path, run: Run) -> None:
    ran = run(sample("apex_o2_fusedadam_torch1.13.1_zip.pt", tmp_path / "old.pt"), "--json")
    (file,) = ran.json["files"]
    assert ran.json["dry_run"] is False and ran.json["error"] is None
    assert file["source"] == str(tmp_path / "old.pt")
    assert file["target"] == str(tmp_path / "old.native.pt")
    assert (file["result"], file["backup"], file["error"]) == ("converted", None, None)
    assert "amp.state_dict()" in file["layouts"]
    assert {note["kind"] for note in file["notes"]} == {"changed", "assumed", "lost"}
    assert all(set(note) == {"kind", "place", "text"} for note in file["notes"])


def test_json_holds_failures_which_stderr_says_as_well(tmp_path: Path, run: Run) -> None:
    (tmp_path / "bad.pt").write_text("hello, this is text\n")
    ran = run(tmp_path / "bad.pt", "--json")
    (file,) = ran.json["files"]
    assert ran.code == 2
    assert file["result"] == "failed" and "text file" in file["error"]
    assert "text file" in ran.err


def test_json_is_json_even_if_nothing_could_begin(tmp_path: Path, run: Run) -> None:
    ran = run(tmp_path / "none.pt", "--json")
    assert ran.code == 2
    assert "none.pt" in ran.json["error"] and ran.json["files"] == []


# what a file doesn't say


def test_scaler_keeps_one_of_several(tmp_path: Path, run: Run) -> None:
    source = old(tmp_path / "old.pt", amp=amp_state(1024.0, 2048.0))
    assert run(source, "--scaler", 1).code == 0
    assert read(tmp_path / "old.native.pt")["amp"]["scale"] == 2048.0


def test_a_scaler_that_is_not_there_is_an_error(tmp_path: Path, run: Run) -> None:
    for number in (7, -1):
        ran = run(old(tmp_path / "old.pt"), "--scaler", number)
        assert ran.code == 2 and "scaler" in ran.err
    assert names(tmp_path) == ["old.pt"]


def test_key_keeps_one_by_its_name(tmp_path: Path, run: Run) -> None:
    source = old(tmp_path / "old.pt", amp=amp_state(1024.0, 2048.0))
    assert run(source, "--key", "loss_scaler1").code == 0
    assert read(tmp_path / "old.native.pt")["amp"]["scale"] == 2048.0


def test_static_scale_is_no_assumption_any_more(tmp_path: Path, run: Run) -> None:
    source = old(tmp_path / "old.pt")
    assumed = run(source, "--dry-run").out
    ran = run(source, "--static-scale")
    assert "was dynamic" in assumed
    assert ran.code == 0 and "was dynamic" not in ran.out


@pytest.mark.parametrize(("option", "cls"), [("--adam-w-mode", "AdamW"), ("--no-adam-w-mode", "Adam")])
def test_adam_w_mode_says_which_class_goes_on(tmp_path: Path, run: Run, option: str, cls: str) -> None:
    source = sample("apex_o1_fusedadam_torch1.13.1_zip.pt", tmp_path / "old.pt")
    assert "assumed" in run(source, "--dry-run", "--static-scale").out
    ran = run(source, option, "--static-scale")
    assert ran.code == 0 and "assumed" not in ran.out
    assert f"torch.optim.{cls}" in ran.out


def test_accumulation_steps_divide_the_tracker(tmp_path: Path, run: Run) -> None:
    source = old(tmp_path / "old.pt", amp={"loss_scaler0": {"loss_scale": 8.0, "unskipped": 12}})
    assert run(source, "--accumulation-steps", 4).code == 0
    assert read(tmp_path / "old.native.pt")["amp"]["_growth_tracker"] == 3


def test_strip_prefix_cuts_names(tmp_path: Path, run: Run) -> None:
    weights = {"module.weight": torch.ones(2), "module.bias": torch.ones(2)}
    assert run(old(tmp_path / "old.pt", model=weights), "--strip-prefix", "module.").code == 0
    assert list(read(tmp_path / "old.native.pt")["model"]) == ["weight", "bias"]


def _ambiguous(path: Path) -> Path:
    """Masters of two weights that are alike."""
    weights = [torch.full((2,), 0.5), torch.full((2,), 0.5)]
    masters = [weights[0] + 1e-5, weights[1] - 1e-5]
    groups = [{"lr": 0.1, "params": [0, 1]}]
    model = {"a": weights[0].half().float(), "b": weights[1].half().float()}
    state = {"model": model, "master params": masters, "optimizer": {"state": {}, "param_groups": groups}}
    torch.save(state, path)
    return path


@pytest.mark.parametrize("from_file", [False, True])
def test_param_order_says_whose_masters_are_whose(tmp_path: Path, run: Run, from_file: bool) -> None:
    source = _ambiguous(tmp_path / "old.pt")
    (tmp_path / "names").write_text("b\na\n")
    ran = run(source, "--param-order", f"@{tmp_path / 'names'}" if from_file else "b,a")
    assert ran.code == 0, ran.err
    model = read(tmp_path / "old.native.pt")["model"]
    assert model["b"][0] > 0.5 > model["a"][0]


def test_a_missing_file_of_names_is_an_error(tmp_path: Path, run: Run) -> None:
    ran = run(old(tmp_path / "old.pt"), "--param-order", f"@{tmp_path / 'names'}")
    assert ran.code == 2 and "names: No such file" in ran.err


def test_to_apex_and_back_is_the_same(tmp_path: Path, run: Run) -> None:
    source = native(tmp_path / "new.pt")
    assert run(source, "--to", "apex").code == 0
    assert "loss_scaler0" in str(read(tmp_path / "new.apex.pt"))
    assert run(tmp_path / "new.apex.pt", tmp_path / "again.pt").code == 0
    assert str(SCALE) in str(read(tmp_path / "again.pt"))


# how it starts

OPTIONS = [
    *("--inspect", "--output", "--in-place", "--dry-run", "--json", "--jobs", "--to", "--scaler", "--key"),
    *("--static-scale", "--adam-w-mode", "--no-adam-w-mode", "--accumulation-steps", "--strip-prefix"),
    *("--param-order", "--drop-unknown", "--trust"),
]
HELP = """
import sys, contextlib
from amp_migrate.convert.command.main import main
with contextlib.suppress(SystemExit):
    main(["--help"])
assert "torch" not in sys.modules, "torch"
assert "rich" not in sys.modules, "rich"
"""


def test_help_imports_no_torch_and_says_everything(python: Any) -> None:
    ran = python("-c", HELP)
    assert ran.returncode == 0, ran.stderr
    for option in OPTIONS:
        assert option in ran.stdout
    assert "Exit codes" in ran.stdout


def test_help_is_there_at_once(python: Any) -> None:
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        assert python("-m", "amp_migrate.convert", "--help").returncode == 0
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.2


def test_help_can_be_written_in_ascii(python: Any) -> None:
    ran = python("-m", "amp_migrate.convert", "--help", PYTHONIOENCODING="ascii")
    assert ran.returncode == 0, ran.stderr


def test_the_module_and_the_umbrella_are_the_same_command(
    tmp_path: Path, python: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    old(tmp_path / "old.pt")
    assert python("-m", "amp_migrate.convert", "old.pt").returncode == 0
    assert umbrella(["convert", str(tmp_path / "old.pt"), str(tmp_path / "other.pt")]) == 0
    assert (tmp_path / "other.pt").read_bytes() == (tmp_path / "old.native.pt").read_bytes()
    assert python("-m", "amp_migrate.convert", "none.pt").returncode == 2


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path, python: Any) -> None:
    source = old(tmp_path / "old.pt", many={f"key {i}": [{"x": i}] * 3 for i in range(20)})
    command = f"{sys.executable} -m amp_migrate.convert --inspect {source} | true"
    root = str(Path(__file__).resolve().parents[2])
    ran = subprocess.run(command, shell=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root})
    assert "Traceback" not in ran.stderr and "Broken" not in ran.stderr
