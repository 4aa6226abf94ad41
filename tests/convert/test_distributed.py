"""Folders of ``torch.distributed.checkpoint``: what comes out of a conversion, and where."""

from __future__ import annotations

import errno
import io
import pickle
import stat
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torch", minversion="2.2", reason="torch.distributed.checkpoint.load came with 2.2")
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from amp_migrate.convert.command.main import main
from amp_migrate.convert.distributed import convert_folder, replacing
from amp_migrate.convert.distributed.convert_folder import convert_distributed
from amp_migrate.convert.distributed.metadata import read_metadata
from amp_migrate.convert.errors import CannotConvert

from .commands import SCALE, Run, amp_state, names, old, read, run
from .dcp_folders import WEIGHT, files, fused_adam, loaded, saved, state

__all__ = ["run"]
pytestmark = pytest.mark.filterwarnings("ignore")


def test_apex_state_becomes_native_and_dcp_reads_the_result(tmp_path: Path) -> None:
    source = saved(tmp_path / "old")
    before = files(source)
    report = convert_distributed(source, tmp_path / "new").report
    new = loaded(tmp_path / "new")
    assert {name[4:]: value for name, value in new.items() if name.startswith("amp.")} == SCALE
    assert new["optimizer.state.0.step"].equal(torch.tensor(7.0))
    assert new["optimizer.state.1.exp_avg"].equal(torch.full((2,), 0.5))
    assert "optimizer.param_groups.0.step" not in new and new["optimizer.param_groups.0.params"] == [0, 1]
    assert new["model.weight"].equal(WEIGHT) and new["model.half"].dtype is torch.bfloat16
    assert new["model.count"].equal(torch.tensor(5)) and new["epoch"] == 3
    assert {"amp.state_dict()", "fused optimizer's state"} <= set(report.layouts)
    assert files(source) == before


def test_the_result_loads_into_a_native_optimizer(tmp_path: Path) -> None:
    convert_distributed(saved(tmp_path / "old"), tmp_path / "new")
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = torch.optim.AdamW(params, lr=0.5)
    for param in params:
        param.grad = torch.zeros(2)
    optimizer.step()
    template = {"optimizer": optimizer.state_dict()}
    template["optimizer"]["param_groups"] = [{"lr": 0.5, "betas": (0.0, 0.0), "params": [0, 1]}]
    load(template, checkpoint_id=str(tmp_path / "new"))
    entries = template["optimizer"]["state"]
    assert entries[0]["step"].item() == 7 and entries[1]["exp_avg"].equal(torch.full((2,), 0.5))
    assert template["optimizer"]["param_groups"][0]["lr"] == 0.1


def test_names_as_keys_of_an_optimizer_work_as_well(tmp_path: Path) -> None:
    """So ``torch.distributed.checkpoint.state_dict.get_optimizer_state_dict`` keeps them."""
    convert_distributed(saved(tmp_path / "old", {"optim": fused_adam(("a.weight", "a.bias"))}), tmp_path / "new")
    assert loaded(tmp_path / "new")["optim.state.a.bias.step"].item() == 7


def test_what_was_not_flattened_is_converted_too(tmp_path: Path) -> None:
    """DCP before 2.4 kept containers without tensors as they were; a tuple is kept like that to this day."""
    save(state(), checkpoint_id=str(tmp_path / "old"), planner=DefaultSavePlanner(flatten_state_dict=False))
    convert_distributed(tmp_path / "old", tmp_path / "new")
    assert loaded(tmp_path / "new")["amp.scale"] == 1024.0
    source = saved(tmp_path / "tuple", state(pair=({"x": WEIGHT}, 3)))
    convert_distributed(source, tmp_path / "pair")
    pair = loaded(tmp_path / "pair")["pair"]
    assert pair[0]["x"].equal(WEIGHT) and pair[1] == 3


def _in_chunks(folder: Path) -> Path:
    """A folder in which a tensor lies in two chunks in two files, as two processes save it."""
    saved(folder, state())
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    index = next(key for key in metadata.storage_data if key.fqn == "model.weight")
    whole = metadata.storage_data.pop(index)
    entry = metadata.state_dict_metadata["model.weight"]
    chunk = type(entry.chunks[0])
    entry.chunks = []
    for number, (start, rows) in enumerate(((0, 1), (1, 3))):
        stream = io.BytesIO()
        torch.save(WEIGHT[start : start + rows].clone(), stream)
        (folder / f"__{number + 1}_0.distcp").write_bytes(b"before" + stream.getvalue())
        entry.chunks.append(chunk(torch.Size((start, 0)), torch.Size((rows, 3))))
        key = type(index)("model.weight", (start, 0), number)
        metadata.storage_data[key] = type(whole)(f"__{number + 1}_0.distcp", 6, len(stream.getvalue()))
    path.write_bytes(pickle.dumps(metadata))
    return folder


def test_tensors_in_chunks_are_put_together(tmp_path: Path) -> None:
    source = _in_chunks(tmp_path / "old")
    assert loaded(source)["model.weight"].equal(WEIGHT)
    convert_distributed(source, tmp_path / "new")
    assert loaded(tmp_path / "new")["model.weight"].equal(WEIGHT)


def test_apex_objects_in_an_entry_are_converted_without_being_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"dynamic": True, "_loss_scale": 1024.0, "_scale_seq_len": 2000, "_unskipped": 7, "_has_overflow": False}
    scaler = type("LossScaler", (), {"__module__": "apex.amp.scaler"})
    with monkeypatch.context() as patched:
        for name in ("apex", "apex.amp", "apex.amp.scaler"):
            patched.setitem(sys.modules, name, types.ModuleType(name))
        sys.modules["apex.amp.scaler"].LossScaler = scaler  # type: ignore[attr-defined]
        made = scaler()
        vars(made).update(values, _max_loss_scale=2.0**24, _min_loss_scale=None)
        saved(tmp_path / "old", {"scaler": made, "epoch": 1})
    convert_distributed(tmp_path / "old", tmp_path / "new")
    assert loaded(tmp_path / "new") == {**{f"scaler.{key}": value for key, value in SCALE.items()}, "epoch": 1}


def test_a_folder_without_apex_is_copied_as_it_is_with_a_note(tmp_path: Path) -> None:
    source = saved(tmp_path / "old", {"model": {"weight": WEIGHT}, "scaler": dict(SCALE)})
    report = convert_distributed(source, tmp_path / "new").report
    assert report.is_unchanged and "unchanged" in report.notes[0].text
    assert files(tmp_path / "new") == files(source)


def test_a_folder_without_apex_is_not_touched_in_place(tmp_path: Path, run: Run) -> None:
    source = saved(tmp_path / "old", {"model": {"weight": WEIGHT}})
    before = {name: (source / name).stat().st_mtime_ns for name in names(source)}
    ran = run(source, "--in-place")
    assert ran.code == 0 and "left as it is" in ran.out
    assert {name: (source / name).stat().st_mtime_ns for name in names(source)} == before
    assert names(tmp_path) == ["old", *(f"old/{name}" for name in names(source))]


def test_other_files_in_the_folder_come_along(tmp_path: Path) -> None:
    """Lightning keeps what isn't sharded in ``meta.pt`` beside."""
    source = saved(tmp_path / "old", {"model": {"weight": WEIGHT}})
    old(source / "meta.pt")
    (source / "notes").mkdir()
    (source / "notes" / "log.txt").write_text("log")
    report = convert_distributed(source, tmp_path / "new").report
    assert read(tmp_path / "new" / "meta.pt")["amp"] == SCALE
    assert (tmp_path / "new" / "notes" / "log.txt").read_text() == "log"
    assert any(note.place == "meta.pt: amp" for note in report.notes)
    assert loaded(tmp_path / "new")["model.weight"].equal(WEIGHT)


@pytest.mark.parametrize("to", ["apex", "native"])
def test_options_are_followed(tmp_path: Path, run: Run, to: str) -> None:
    source = saved(tmp_path / "old", {"scaler": dict(SCALE)} if to == "apex" else state(amp=amp_state(1.0, 2.0)))
    arguments = ["--to", "apex"] if to == "apex" else ["--scaler", "1"]
    assert run(source, *arguments).code == 0
    new = loaded(tmp_path / f"old.{to}")
    assert (new["scaler.loss_scaler0.loss_scale"] if to == "apex" else new["amp.scale"] * 512) == 1024.0


# the command


def test_the_command_converts_a_folder_as_one(tmp_path: Path, run: Run) -> None:
    source = saved(tmp_path / "old")
    ran = run(source, "--json")
    (file,) = ran.json["files"]
    assert ran.code == 0 and file["result"] == "converted" and file["target"] == str(tmp_path / "old.native")
    assert loaded(tmp_path / "old.native")["amp.scale"] == 1024.0


def test_a_folder_of_folders_finds_them_inside(tmp_path: Path, run: Run) -> None:
    """FSDP in Hugging Face's Trainer: ``checkpoint-5/pytorch_model_fsdp_0``."""
    inner = tmp_path / "run" / "checkpoint-5" / "pytorch_model_fsdp_0"
    inner.parent.mkdir(parents=True)
    saved(inner)
    old(tmp_path / "run" / "checkpoint-5" / "optimizer.pt")
    assert run(tmp_path / "run").code == 0
    new = tmp_path / "run.native" / "checkpoint-5"
    assert loaded(new / "pytorch_model_fsdp_0")["amp.scale"] == 1024.0
    assert read(new / "optimizer.pt")["amp"] == SCALE


def test_inspect_shows_the_nested_state(tmp_path: Path, run: Run) -> None:
    ran = run("--inspect", _in_chunks(tmp_path / "old"))
    assert ran.code == 0
    assert "old: folder of torch.distributed.checkpoint" in ran.out
    assert "    weight: float32[4, 3] 48 B" in ran.out and "      loss_scale: 1024.0" in ran.out
    assert "holds amp.state_dict()" in ran.out


def test_dry_run_writes_nothing(tmp_path: Path, run: Run) -> None:
    source = saved(tmp_path / "old")
    before = names(tmp_path)
    for place in ((), ("--in-place",)):
        ran = run(source, "--dry-run", *place)
        assert ran.code == 0 and "scale 1024" in ran.out
        assert names(tmp_path) == before


def test_in_place_keeps_the_old_folder_and_never_overwrites_one(tmp_path: Path, run: Run) -> None:
    source = saved(tmp_path / "old")
    source.chmod(0o750)
    (tmp_path / "old.bak").mkdir()
    before = files(source)
    (file,) = run(source, "--in-place", "--json").json["files"]
    assert file["backup"] == str(tmp_path / "old.bak1")
    assert files(tmp_path / "old.bak1") == before and names(tmp_path / "old.bak") == []
    assert loaded(source)["amp.scale"] == 1024.0
    assert stat.S_IMODE(source.stat().st_mode) == 0o750
    assert sorted(each.name for each in tmp_path.iterdir()) == ["old", "old.bak", "old.bak1"]


def test_in_place_works_where_folders_can_not_change_names(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacing, "_exchanged", lambda one, other: False)
    source = saved(tmp_path / "old")
    before = files(source)
    assert run(source, "--in-place").code == 0
    assert files(tmp_path / "old.bak") == before and loaded(source)["amp.scale"] == 1024.0


@pytest.mark.parametrize("in_place", [True, False])
def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_place: bool) -> None:
    source = saved(tmp_path / "old")
    before = files(source)

    def fails(state: Any, folder: Path, name: Path) -> None:
        (folder / "__0_0.distcp").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(convert_folder, "save_state", fails)
    with pytest.raises(OSError, match="No space left"):
        convert_distributed(source, None if in_place else tmp_path / "new", in_place=in_place)
    assert files(source) == before
    assert [each.name for each in tmp_path.iterdir()] == ["old"]


def test_the_target_is_under_its_name_only_when_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = saved(tmp_path / "old")
    seen: list[bool] = []
    sync = replacing._sync

    def watching(path: Path) -> None:
        seen.append((tmp_path / "new").exists())
        sync(path)

    monkeypatch.setattr(replacing, "_sync", watching)
    convert_distributed(source, tmp_path / "new")
    assert seen and not any(seen)


def test_a_target_that_exists_is_refused(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    with pytest.raises(FileExistsError, match="exists already"):
        convert_distributed(saved(tmp_path / "old"), tmp_path / "new")


def test_an_older_torch_is_told_which_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    with pytest.raises(CannotConvert, match=r"needs torch 2\.2 or newer"):
        convert_distributed(saved(tmp_path / "old"), tmp_path / "new")


def test_the_metadata_do_not_name_the_place_where_it_was_written(tmp_path: Path) -> None:
    convert_distributed(saved(tmp_path / "old"), tmp_path / "new")
    assert b"amp_migrate.tmp" not in (tmp_path / "new" / ".metadata").read_bytes()
    assert read_metadata(tmp_path / "new").tensors["model.weight"].shape == (4, 3)


def test_several_files_of_one_process_are_read(tmp_path: Path) -> None:
    for threads in (1, 2):
        writer = FileSystemWriter(str(tmp_path / f"{threads}"), single_file_per_rank=threads == 1, thread_count=threads)
        save(state(), storage_writer=writer)
        assert main([str(tmp_path / f"{threads}")]) == 0
        assert loaded(tmp_path / f"{threads}.native")["model.weight"].equal(WEIGHT)
