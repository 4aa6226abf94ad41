"""``--inspect``: what is shown of a file, and that showing it executes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from .commands import NEEDLESS, Run, Touches, amp_state, names, native, old, run, sample
from .made_files import PROTO, named, plain_pickle, text

__all__ = ["run"]

O1 = "apex_o1_fusedadam_torch1.13.1_zip.pt"
O2 = "apex_o2_fusedadam_torch1.13.1_zip.pt"
LEGACY = "apex_o1_fusedadam_torch1.5.1_legacy.pt"


def test_the_tree_has_keys_dtypes_shapes_and_sizes(tmp_path: Path, run: Run) -> None:
    ran = run("--inspect", old(tmp_path / "old.pt", half=torch.ones(500, 4).half(), count=torch.tensor(3)))
    lines = ran.out.splitlines()
    assert (ran.code, ran.err) == (0, "")
    assert "  model: OrderedDict of 2" in lines
    assert "    weight: float32[2, 3] 24 B" in lines
    assert "    loss_scaler0: dict of 2" in lines
    assert "      loss_scale: 1024.0" in lines
    assert "  half: float16[500, 4] 4.0 KB" in lines
    assert "  count: int64[] 8 B" in lines
    assert "  epoch: 3" in lines


def test_shared_tensors_and_long_rows_are_not_repeated(tmp_path: Path, run: Run) -> None:
    shared = {"x": torch.ones(2)}
    many = {i: {"exp_avg": torch.ones(1)} for i in range(100)}
    ran = run("--inspect", old(tmp_path / "old.pt", one=shared, two=shared, many=many))
    assert "  two: the same as one" in ran.out
    assert "… 97 more" in ran.out
    assert len(ran.out.splitlines()) < 40


@pytest.mark.parametrize(("name", "kind"), [(O1, "zip file"), (LEGACY, "legacy file")])
def test_the_format_and_the_writer_are_said(tmp_path: Path, run: Run, name: str, kind: str) -> None:
    ran = run("--inspect", sample(name, tmp_path / "old.pt"))
    assert f"old.pt: {kind}" in ran.out
    assert "holds amp.state_dict(): apex.amp" in ran.out
    assert "holds fused optimizer's state: apex.optimizers" in ran.out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (O2, "all values fit float16: O2 or O3 wrote them"),
        (O1, "float32 values that don't fit float16: O0 or O1"),
        ("fp16utils_dynamic_torch1.13.1_zip.pt", "float16 weights, as FP16_Optimizer"),
    ],
)
def test_the_opt_level_that_the_weights_betray_is_said(tmp_path: Path, run: Run, name: str, words: str) -> None:
    assert words in run("--inspect", sample(name, tmp_path / "old.pt")).out


def test_a_file_without_apex_is_said_to_have_none(tmp_path: Path, run: Run) -> None:
    assert "nothing of Apex was recognised" in run("--inspect", native(tmp_path / "new.pt")).out


def test_foreign_classes_are_shown_and_not_executed(tmp_path: Path, run: Run) -> None:
    source = old(tmp_path / "old.pt", hooks=[{"here": Touches(tmp_path / "canary")}])
    ran = run("--inspect", source)
    assert ran.code == 0
    assert "foreign: posix.mkdir at hooks[0].here" in ran.out
    assert "here: <posix.mkdir>" in ran.out
    assert names(tmp_path) == ["old.pt"]


def test_a_hostile_pickle_is_shown_and_not_executed(tmp_path: Path, run: Run) -> None:
    body = PROTO + named("posix", "system") + text(f"touch {tmp_path / 'canary'}") + b"\x85R."
    ran = run("--inspect", plain_pickle(tmp_path / "bad.pt", body))
    assert "posix.system" in ran.out
    assert names(tmp_path) == ["bad.pt"]


def test_what_can_not_be_converted_without_an_option_is_said(tmp_path: Path, run: Run) -> None:
    zero = {"zero_stage": 1, "partition_count": 2, "base_optimizer_state": {}}
    ran = run("--inspect", old(tmp_path / "old.pt", optimizer=zero))
    assert ran.code == 0
    assert "converting it: optimizer is one process's part of a ZeRO optimizer" in ran.out


def test_json_says_the_same(tmp_path: Path, run: Run) -> None:
    source = sample(O2, tmp_path / "old.pt")
    (found,) = run("--inspect", source, "--json").json
    assert found["file"] == str(source)
    assert found["format"] == "zip file" and found["writer"]["pickle protocol"] == 2
    assert found["tensors"] == 21 and found["bytes_of_tensors"] == 448
    assert [layout["name"] for layout in found["layouts"]][0] == "amp.state_dict()"
    assert all(set(layout) == {"name", "writer", "years", "source"} for layout in found["layouts"])
    assert found["opt_level"] == "O2 or O3"
    assert found["foreign"] == {} and found["problem"] is None
    assert any("fc1.weight: float32[4, 3] 48 B" in line for line in found["tree"])


def test_several_files_are_shown_one_after_the_other(tmp_path: Path, run: Run) -> None:
    sources = [old(tmp_path / "a.pt"), old(tmp_path / "b.pt")]
    assert [found["file"] for found in run("--inspect", *sources, "--json").json] == list(map(str, sources))


def test_a_folder_shows_its_checkpoints(tmp_path: Path, run: Run) -> None:
    (tmp_path / "run").mkdir()
    old(tmp_path / "run" / "a.pt")
    old(tmp_path / "run" / "b")
    (tmp_path / "run" / "log.txt").write_text("log")
    (tmp_path / "run" / "data.zip").write_bytes(b"PK\x03\x04rest")
    ran = run("--inspect", tmp_path / "run", "--json")
    assert ran.code == 0
    assert [Path(found["file"]).name for found in ran.json] == ["a.pt", "b"]


def test_files_that_can_not_be_opened_are_errors_and_the_others_are_shown(tmp_path: Path, run: Run) -> None:
    (tmp_path / "bad.pt").write_text("hello, this is text\n")
    ran = run("--inspect", tmp_path / "bad.pt", tmp_path / "none.pt", old(tmp_path / "old.pt"))
    assert ran.code == 2
    assert f"{tmp_path / 'bad.pt'}: this is a text file" in ran.err
    assert f"{tmp_path / 'none.pt'}: no such file" in ran.err
    assert "loss_scaler0" in ran.out


def test_it_writes_nothing_and_needs_no_torch(tmp_path: Path, python: object) -> None:
    old(tmp_path / "old.pt", amp=amp_state(), again=NEEDLESS.state_dict())
    script = (
        "import sys\nfrom amp_migrate.convert.command.main import main\n"
        "code = main(['--inspect', 'old.pt'])\nassert 'torch' not in sys.modules\nsys.exit(code)"
    )
    ran = python("-c", script)  # type: ignore[operator]
    assert ran.returncode == 0, ran.stderr
    assert names(tmp_path) == ["old.pt"]
