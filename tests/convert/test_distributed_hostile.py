"""Folders of ``torch.distributed.checkpoint`` that aren't what they say, or made to hurt: nothing is executed."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any, Callable

import pytest
import torch

pytest.importorskip("torch", minversion="2.2", reason="torch.distributed.checkpoint.load came with 2.2")

from amp_migrate.convert.distributed.convert_folder import convert_distributed
from amp_migrate.convert.errors import CannotConvert, Damaged, Unsafe

from .commands import Run, Touches, names, run
from .dcp_folders import WEIGHT, loaded, saved

__all__ = ["run"]
pytestmark = pytest.mark.filterwarnings("ignore")


def _metadata(change: Callable[[Any], None]) -> Callable[[Path], None]:
    """Change what ``.metadata`` says."""

    def make(folder: Path) -> None:
        path = folder / ".metadata"
        metadata = pickle.loads(path.read_bytes())
        change(metadata)
        path.write_bytes(pickle.dumps(metadata))

    return make


def _info(metadata: Any, name: str) -> Any:
    return next(info for index, info in metadata.storage_data.items() if index.fqn == name)


def _set(name: str, **values: Any) -> Callable[[Path], None]:
    return _metadata(lambda metadata: [setattr(_info(metadata, name), key, value) for key, value in values.items()])


def _huge(metadata: Any) -> None:
    entry = metadata.state_dict_metadata["model.weight"]
    entry.size = entry.chunks[0].sizes = torch.Size((1 << 40, 1 << 20))


def _hole(metadata: Any) -> None:
    metadata.state_dict_metadata["model.weight"].size = torch.Size((8, 3))


def _outside(metadata: Any) -> None:
    chunk = metadata.state_dict_metadata["model.weight"].chunks[0]
    chunk.offsets = torch.Size((1, 0))
    index = next(key for key in metadata.storage_data if key.fqn == "model.weight")
    metadata.storage_data[type(index)("model.weight", (1, 0), 0)] = metadata.storage_data.pop(index)


def _way(*way: Any) -> Callable[[Path], None]:
    return _metadata(lambda metadata: metadata.planner_data.update({"epoch": way}))


def _without_chunks(metadata: Any) -> None:
    metadata.storage_data = {key: info for key, info in metadata.storage_data.items() if key.fqn != "model.weight"}


def _other_dtype(metadata: Any) -> None:
    metadata.state_dict_metadata["model.weight"].properties.dtype = torch.int32


FALSE = {
    "a path upwards": (_set("model.weight", relative_path="../secret.distcp"), "isn't a file in the folder"),
    "an absolute path": (_set("model.weight", relative_path="/etc/passwd"), "isn't a file in the folder"),
    "a path downwards": (_set("epoch", relative_path="sub/x.distcp"), "isn't a file in the folder"),
    "the folder": (_set("epoch", relative_path=".."), "isn't a file in the folder"),
    "a path that is none": (_set("epoch", relative_path=7), "an entry is called 7"),
    "a file that isn't there": (_set("epoch", relative_path="__9_0.distcp"), "__9_0.distcp is missing"),
    "beyond the end": (_set("epoch", offset=1 << 60), "needs more: copy the folder again"),
    "before the beginning": (_set("epoch", offset=-5), "the place of an entry is -5"),
    "one part many times": (_set("epoch", offset=0, length=10_000), "needs more"),
    "a tensor that fills the memory": (_metadata(_huge), "and its file has fewer"),
    "a tensor with a hole": (_metadata(_hole), "don't fill a tensor"),
    "a chunk outside": (_metadata(_outside), "lies outside of its shape"),
    "another dtype": (_metadata(_other_dtype), "and .metadata says int32"),
    "a tensor that is nowhere": (_metadata(_without_chunks), "doesn't say where 'model.weight' is"),
    "a list that fills the memory": (_way("x", 1 << 50), "lists have more than"),
    "an index below 0": (_way("x", -1), "something else than keys and indices"),
    "two entries at one place": (_way("model", "weight"), "there are two entries at"),
    "an entry in another": (_way("model", "weight", "x"), "lies in something that is no container"),
    "a way without end": (_way(*["x"] * 5000), "the way to an entry is"),
    "no metadata": (lambda folder: (folder / ".metadata").unlink(), "has no .metadata"),
    "metadata cut off": (lambda folder: os.truncate(folder / ".metadata", 500), ".metadata"),
    "data cut off": (lambda folder: os.truncate(folder / "__0_0.distcp", 500), "copy the folder again"),
    "something else": (lambda folder: (folder / ".metadata").write_bytes(pickle.dumps([1])), "where a Metadata should"),
}


@pytest.mark.parametrize("kind", FALSE)
def test_a_folder_that_is_not_what_it_says_is_refused(tmp_path: Path, kind: str) -> None:
    change, words = FALSE[kind]
    source = saved(tmp_path / "old")
    change(source)
    (tmp_path / "secret.distcp").write_bytes((source / "__0_0.distcp").read_bytes())
    with pytest.raises(Damaged, match=".") as caught:
        convert_distributed(source, tmp_path / "new")
    assert words in str(caught.value)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["old", "secret.distcp"]


def test_an_extension_of_dcps_is_refused_with_advice(tmp_path: Path) -> None:
    source = saved(tmp_path / "old")
    _set("epoch", transform_descriptors=["zstd"])(source)
    with pytest.raises(CannotConvert, match="was written with an extension"):
        convert_distributed(source, tmp_path / "new")


def _hostile_metadata(folder: Path, canary: Path) -> None:
    _metadata(lambda metadata: metadata.planner_data.update({"x": Touches(canary)}))(folder)


def _hostile_whole(folder: Path, canary: Path) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(Touches(canary)))


def _hostile_before(folder: Path, canary: Path) -> None:
    """A pickle that executes something and still gives the right metadata."""
    good = (folder / ".metadata").read_bytes()
    bad = pickle.dumps(Touches(canary), protocol=2)[:-1] + b"0"
    (folder / ".metadata").write_bytes(good[:2] + bad[2:] + good[2:])


METADATA = {"in it": _hostile_metadata, "all of it": _hostile_whole, "before it": _hostile_before}


@pytest.mark.parametrize("kind", METADATA)
@pytest.mark.parametrize("option", [None, "--drop-unknown", "--trust"])
def test_nothing_in_metadata_is_executed(tmp_path: Path, run: Run, kind: str, option: str | None) -> None:
    source = saved(tmp_path / "old")
    METADATA[kind](source, tmp_path / "canary")
    ran = run(source, tmp_path / "new", *([option] if option else []))
    inspected = run("--inspect", source)
    assert not (tmp_path / "canary").exists()
    if kind != "before it":  # there the result of the call is thrown away, and nothing of it is left to see
        assert ran.code == inspected.code == 2
        assert "posix.mkdir" in ran.err and "torch.distributed.checkpoint never writes that" in ran.err
        assert not (tmp_path / "new").exists()


def _replace_entry(folder: Path, name: str, value: Any) -> None:
    """Let an entry hold another object, in a file of its own."""
    stream = io.BytesIO()
    torch.save(value, stream)
    (folder / "__9_0.distcp").write_bytes(stream.getvalue())
    _set(name, relative_path="__9_0.distcp", offset=0, length=len(stream.getvalue()))(folder)


@pytest.mark.parametrize("name", ["epoch", "model.weight", "optimizer.param_groups.0.betas"])
def test_nothing_in_an_entry_is_executed(tmp_path: Path, run: Run, name: str) -> None:
    source = saved(tmp_path / "old")
    _replace_entry(source, name, Touches(tmp_path / "canary"))
    ran = run(source, tmp_path / "new")
    run("--inspect", source)
    assert ran.code == 2
    assert "posix.mkdir" in ran.err or "instead of a tensor" in ran.err
    assert names(tmp_path)[-1].startswith("old/") and not (tmp_path / "canary").exists()


def test_a_folder_without_apex_is_not_copied_if_something_in_it_would_be_executed(tmp_path: Path) -> None:
    source = saved(tmp_path / "old", {"model": {"weight": WEIGHT}, "epoch": 3})
    _replace_entry(source, "epoch", {"hook": Touches(tmp_path / "canary")})
    with pytest.raises(Unsafe, match=r"posix\.mkdir at epoch\.hook"):
        convert_distributed(source, tmp_path / "new")
    assert [each.name for each in tmp_path.iterdir()] == ["old"]


def test_drop_unknown_leaves_the_entry_out(tmp_path: Path) -> None:
    source = saved(tmp_path / "old")
    _replace_entry(source, "epoch", {"hook": Touches(tmp_path / "canary"), "number": 3})
    report = convert_distributed(source, tmp_path / "new", drop_unknown=True).report
    assert loaded(tmp_path / "new", "epoch") == {"epoch.number": 3}
    assert any("posix.mkdir" in note.text and note.place == "epoch.hook" for note in report.notes)
    assert not (tmp_path / "canary").exists()


def test_trust_executes_entries_and_says_so(tmp_path: Path) -> None:
    source = saved(tmp_path / "old")
    _replace_entry(source, "epoch", _Pair(1, 2))
    with pytest.raises(Unsafe, match="_Pair"):
        convert_distributed(source, tmp_path / "new")
    report = convert_distributed(source, tmp_path / "new", trust=True).report
    assert any("executed" in note.text for note in report.notes)
    new = loaded(tmp_path / "new")
    assert new["amp.scale"] == 1024.0 and new["epoch"].second == 2


class _Pair:
    def __init__(self, first: int, second: int) -> None:
        self.first, self.second = first, second
