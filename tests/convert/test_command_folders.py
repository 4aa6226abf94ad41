"""Folders on the command line: what is converted, what is copied, and where everything goes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from amp_migrate.convert.command.parallel import in_processes
from amp_migrate.convert.command.tasks import Task

from .commands import SCALE, Run, Touches, amp_state, names, native, old, read, run, sample

__all__ = ["run"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A training's output: checkpoints, one of them native, and what lies beside them."""
    made = tmp_path / "output"
    (made / "runs" / "deep").mkdir(parents=True)
    old(made / "last.pt")
    native(made / "new.pt")
    old(made / "runs" / "deep" / "epoch1.pth.tar")
    old(made / "runs" / "no_ending")
    (made / "config.json").write_text('{"lr": 0.1}')
    (made / "runs" / "log.txt").write_text("epoch 1\n")
    (made / "script.sh").write_text("#!/bin/sh\n")
    (made / "script.sh").chmod(0o755)
    np.savez(made / "features.npz", x=np.ones(3))
    (made / "vocabulary.model").write_bytes(b"\x0a\x0e\x0a\x05<unk>")
    return made


def _texts(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names(folder) if (folder / name).is_file()}


def test_a_folder_is_converted_into_one_beside_it(folder: Path, run: Run) -> None:
    before = _texts(folder)
    ran = run(folder)
    new = folder.parent / "output.native"
    assert (ran.code, ran.err) == (0, "")
    assert names(new) == names(folder)
    assert _texts(folder) == before
    for name in ("last.pt", "runs/deep/epoch1.pth.tar", "runs/no_ending"):
        assert read(new / name)["amp"] == SCALE
    assert ran.out.rstrip().endswith("3 converted, 1 unchanged, 5 copied")


def test_what_is_no_checkpoint_is_copied_byte_by_byte(folder: Path, run: Run) -> None:
    run(folder, folder.parent / "new")
    for name in ("config.json", "runs/log.txt", "script.sh", "features.npz", "vocabulary.model"):
        assert (folder.parent / "new" / name).read_bytes() == (folder / name).read_bytes()
    assert os.access(folder.parent / "new" / "script.sh", os.X_OK)


def test_the_folder_one_is_in_can_be_converted(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert run(".").code == 0
    assert names(folder.parent / "output.native") == names(folder)


@pytest.mark.parametrize("target", ["output/inside", "output/runs", "output", "output/../output"])
def test_a_folder_into_itself_is_refused(folder: Path, run: Run, target: str) -> None:
    before = names(folder.parent)
    ran = run(folder, folder.parent / target)
    assert ran.code == 2
    assert "is inside" in ran.err or "is SRC itself" in ran.err
    assert names(folder.parent) == before


def test_a_folder_into_a_file_is_refused(folder: Path, run: Run) -> None:
    (folder.parent / "file").write_text("mine")
    ran = run(folder, folder.parent / "file")
    assert ran.code == 2 and "name a folder" in ran.err


def test_two_folders_go_under_their_names(folder: Path, run: Run) -> None:
    other = shutil.copytree(folder, folder.parent / "other")
    assert run(folder, other, "--output", folder.parent / "new").code == 0
    assert names(folder.parent / "new" / "output") == names(folder.parent / "new" / "other") == names(folder)


def test_dry_run_of_a_folder_writes_nothing(folder: Path, run: Run) -> None:
    before = names(folder.parent)
    ran = run(folder, "--dry-run", "--json")
    assert ran.code == 0
    assert names(folder.parent) == before
    results = {Path(file["source"]).name: file["result"] for file in ran.json["files"]}
    assert results["last.pt"] == "converted" and results["new.pt"] == "unchanged" and results["config.json"] == "copied"


def test_json_has_every_file_once(folder: Path, run: Run) -> None:
    ran = run(folder, "--json", "--jobs", 2)
    sources = [file["source"] for file in ran.json["files"]]
    assert sorted(sources) == sorted(str(folder / name) for name in names(folder) if (folder / name).is_file())


def test_what_is_there_already_is_not_overwritten(folder: Path, run: Run) -> None:
    new = folder.parent / "output.native"
    new.mkdir()
    (new / "last.pt").write_text("mine")
    (new / "config.json").write_text("mine")
    ran = run(folder)
    assert ran.code == 2 and "2 failed" in ran.out
    assert ran.err.count("exists already") == 2
    assert (new / "last.pt").read_text() == (new / "config.json").read_text() == "mine"
    assert (new / "runs" / "no_ending").exists()


@pytest.mark.parametrize("name", ["empty.pt", "pointer.ckpt", "cut.pth"])
def test_a_file_called_like_a_checkpoint_that_is_none_is_an_error(folder: Path, run: Run, name: str) -> None:
    content = {"e": b"", "p": b"version https://git-lfs.github.com/spec/v1\n", "c": b"PK\x03\x04half"}[name[0]]
    (folder / name).write_bytes(content)
    ran = run(folder)
    assert ran.code == 2
    assert ran.err.startswith(f"{folder / name}: ")
    assert not (folder.parent / "output.native" / name).exists()
    assert (folder.parent / "output.native" / "last.pt").exists()


def test_what_needs_executing_is_never_copied_silently(folder: Path, run: Run) -> None:
    torch.save({"hook": Touches(folder / "canary")}, folder / "runs" / "state")
    ran = run(folder)
    assert ran.code == 2 and "posix.mkdir" in ran.err
    assert not (folder.parent / "output.native" / "runs" / "state").exists()
    assert not (folder / "canary").exists()


def test_what_needs_an_option_is_never_copied_silently(folder: Path, run: Run) -> None:
    old(folder / "runs" / "no_ending_either", optimizer=_zero_state())
    assert run(folder).code == 2
    assert not (folder.parent / "output.native" / "runs" / "no_ending_either").exists()


def test_an_empty_folder_is_an_error(tmp_path: Path, run: Run) -> None:
    (tmp_path / "nothing").mkdir()
    ran = run(tmp_path / "nothing")
    assert ran.code == 2 and "there is no file in it" in ran.err


def test_what_a_killed_run_left_is_passed_over(folder: Path, run: Run) -> None:
    (folder / ".last.pt.abc.amp_migrate.tmp").write_bytes(b"PK\x03\x04half")
    ran = run(folder)
    assert ran.code == 0
    assert ".last.pt.abc.amp_migrate.tmp" not in names(folder.parent / "output.native")


def test_a_hugging_face_trainer_folder_stays_one(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "checkpoint-500"
    folder.mkdir()
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))])
    torch.save(torch.nn.Linear(2, 2).state_dict(), folder / "pytorch_model.bin")
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    torch.save({"last_epoch": 5, "_last_lr": [0.1]}, folder / "scheduler.pt")
    torch.save({"numpy": np.random.RandomState(0).get_state(), "cpu": torch.get_rng_state()}, folder / "rng_state.pth")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 500}))
    ran = run(folder)
    assert (ran.code, ran.err) == (0, "")
    new = tmp_path / "checkpoint-500.native"
    assert names(new) == names(folder)
    assert read(new / "rng_state.pth")["cpu"].equal(torch.get_rng_state())
    assert read(new / "scheduler.pt") == {"last_epoch": 5, "_last_lr": [0.1]}


# folders of per-rank files


def _zero_state() -> dict[str, Any]:
    return {"zero_stage": 1, "partition_count": 2, "base_optimizer_state": {}, "single_partition_of_fp32_groups": []}


@pytest.mark.parametrize("jobs", [1, 2])
def test_megatrons_ranks_convert_in_parallel(tmp_path: Path, run: Run, jobs: int) -> None:
    folder = tmp_path / "iter_0001000"
    for rank in range(4):
        (folder / f"mp_rank_{rank:02}").mkdir(parents=True)
        sample("fp16utils_dynamic_torch1.13.1_zip.pt", folder / f"mp_rank_{rank:02}" / "model_optim_rng.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text("1000")
    ran = run(folder, "--jobs", jobs)
    assert (ran.code, ran.err) == (0, "")
    new = tmp_path / "iter_0001000.native"
    assert names(new) == names(folder)
    assert len({(new / f"mp_rank_{rank:02}" / "model_optim_rng.pt").read_bytes() for rank in range(4)}) == 1
    assert "4 converted, 1 copied" in ran.out


def test_deepspeeds_parts_of_zero_are_refused_with_the_reason_and_the_rest_is_done(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "global_step10"
    folder.mkdir()
    for rank in range(2):
        old(folder / f"mp_rank_{rank:02}_model_states.pt", module=torch.nn.Linear(2, 2).state_dict())
        part = {"optimizer_state_dict": _zero_state()}
        torch.save(part, folder / f"zero_pp_rank_{rank}_mp_rank_00optim_states.pt")
    (tmp_path / "latest").write_text("global_step10")
    ran = run(folder, "--jobs", 2)
    assert ran.code == 2
    assert ran.err.count("is one process's part of a ZeRO optimizer") == 2
    assert ran.err.count("Gather it where it was trained") == 2
    assert "2 converted, 2 failed" in ran.out
    assert names(tmp_path / "global_step10.native") == ["mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt"]


def test_ranks_that_are_done_by_two_processes_come_out_as_by_one(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in range(8):
        old(folder / f"rank{rank}.pt", rank=rank, amp=amp_state(2.0**rank))
    assert run(folder, tmp_path / "one", "--jobs", 1).out.replace("/one/", "/two/") == (
        run(folder, tmp_path / "two", "--jobs", 2).out
    )
    assert _texts(tmp_path / "one") == _texts(tmp_path / "two")


def test_a_process_that_is_killed_fails_its_file_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amp_migrate.convert.command.parallel.work", _killed)
    (outcome,) = in_processes(1, [Task(tmp_path / "a.pt", tmp_path / "b.pt")], {}, False)
    assert outcome.error is not None and "--jobs 1" in outcome.error


def _killed(*arguments: Any) -> Any:
    os._exit(9)
