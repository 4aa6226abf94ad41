"""Writing makes a file that torch opens, as a whole or not at all, without having it in memory."""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import sys
import time
import tracemalloc
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator

import pytest
import torch

from amp_migrate.convert.errors import CannotConvert, Damaged, Unsafe
from amp_migrate.convert.opening import open_checkpoint
from amp_migrate.convert.records import FileRange, Global, Inline, PickledObject, Storage, Tensor
from amp_migrate.convert.writing import write_checkpoint
from amp_migrate.convert.writing import zip_file as writer
from amp_migrate.whole_file import UNFINISHED

from .made_files import PROTO, storage_id, tensor, torch_zip

ROOT = Path(__file__).resolve().parents[2]


def floats(*values: float, **more: Any) -> Tensor:
    data = struct.pack(f"<{len(values)}f", *values)
    return Tensor(Storage("float32", len(values), "cpu", Inline(data)), 0, (len(values),), (1,), **more)


def test_the_zip_file_is_one_that_libraries_read_too(tmp_path: Path) -> None:
    write_checkpoint({"a": floats(1, 2), "b": floats(3)}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        assert archive.testzip() is None
        names = ["data.pkl", "byteorder", "data/0", "data/1", "version"]
        assert archive.namelist() == [f"archive/{name}" for name in names]
        assert {each.compress_type for each in archive.infolist()} == {zipfile.ZIP_STORED}


def test_storages_are_aligned_as_torch_aligns_them(tmp_path: Path) -> None:
    write_checkpoint([floats(*range(n)) for n in (1, 3, 17, 100)], tmp_path / "a.pt")
    for each in open_checkpoint(tmp_path / "a.pt").root:
        assert each.storage.source.offset % 64 == 0


def test_torch_can_map_the_file(tmp_path: Path) -> None:
    write_checkpoint([floats(1, 2, 3)], tmp_path / "a.pt")
    if "mmap" not in (torch.load.__doc__ or ""):
        pytest.skip("this torch can't map files")
    assert torch.load(tmp_path / "a.pt", mmap=True, weights_only=True)[0].tolist() == [1.0, 2.0, 3.0]


def test_only_the_storages_that_the_tree_uses_are_written(tmp_path: Path) -> None:
    big, small = torch.zeros(100_000), torch.ones(2)
    torch.save({"big": big, "small": small, "again": small}, tmp_path / "old.pt")
    root = open_checkpoint(tmp_path / "old.pt").root
    del root["big"]
    write_checkpoint(root, tmp_path / "new.pt")
    assert (tmp_path / "new.pt").stat().st_size < 5000
    assert len([name for name in zipfile.ZipFile(tmp_path / "new.pt").namelist() if "/data/" in name]) == 1


def test_the_checksum_of_what_is_copied_is_right_whether_or_not_it_was_known(tmp_path: Path) -> None:
    value = {"w": torch.randn(1000)}
    for is_zip in (True, False):
        torch.save(value, tmp_path / "old.pt", _use_new_zipfile_serialization=is_zip)
        write_checkpoint(open_checkpoint(tmp_path / "old.pt").root, tmp_path / "new.pt", overwrite=True)
        assert zipfile.ZipFile(tmp_path / "new.pt").testzip() is None


def test_damage_in_the_bytes_of_a_storage_can_still_be_seen_afterwards(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1000)}, tmp_path / "old.pt")
    data = (tmp_path / "old.pt").read_bytes()
    where = data.index(struct.pack("<f", 1.0) * 500)
    (tmp_path / "old.pt").write_bytes(data[:where] + b"\xff" + data[where + 1 :])
    write_checkpoint(open_checkpoint(tmp_path / "old.pt").root, tmp_path / "new.pt")
    assert zipfile.ZipFile(tmp_path / "new.pt").testzip() == "archive/data/0"


@pytest.mark.parametrize(
    "cls, layout, values",
    [
        ("FloatStorage", ">4f", [1.5, -2, 3, 4]),
        ("LongStorage", ">4q", [1, -2, 1 << 40, 0]),
        ("CharStorage", ">4b", [1, -2, 3, 4]),
    ],
)
def test_what_a_big_endian_machine_wrote_is_turned_round(
    cls: str, layout: str, values: list[Any], tmp_path: Path
) -> None:
    entries = {"data/0": struct.pack(layout, *values), "byteorder": b"big"}
    torch_zip(tmp_path / "old.pt", PROTO + tensor(storage_id(cls=cls)) + b".", entries)
    write_checkpoint(open_checkpoint(tmp_path / "old.pt").root, tmp_path / "new.pt")
    assert torch.load(tmp_path / "new.pt").tolist() == values


def test_complex_numbers_of_a_big_endian_machine_keep_their_parts_apart(tmp_path: Path) -> None:
    entries = {"data/0": struct.pack(">4f", 1, 2, 3, 4), "byteorder": b"big"}
    body = tensor(storage_id(cls="ComplexFloatStorage", numel=2), shape=(2,))
    torch_zip(tmp_path / "old.pt", PROTO + body + b".", entries)
    write_checkpoint(open_checkpoint(tmp_path / "old.pt").root, tmp_path / "new.pt")
    assert torch.load(tmp_path / "new.pt").tolist() == [1 + 2j, 3 + 4j]


@dataclass(frozen=True)
class Counted:
    """A source that makes its bytes when they are asked for, as a live storage does."""

    length: int
    crc32: None = None

    def read(self, start: int, length: int) -> bytes:
        return bytes(length)

    def chunks(self) -> Iterator[bytes]:
        for _ in range(self.length >> 20):
            yield bytes(1 << 20)


def test_any_source_of_bytes_is_written_without_having_all_of_them(tmp_path: Path) -> None:
    size = 64 << 20
    storage = Storage("uint8", size, "cpu", Counted(size))
    tracemalloc.start()
    write_checkpoint(Tensor(storage, 0, (size,), (1,)), tmp_path / "a.pt")
    write_checkpoint(open_checkpoint(tmp_path / "a.pt").root, tmp_path / "b.pt")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()


def test_sizes_of_more_than_32_bits_are_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "LARGEST", 3000)  # as if that were the biggest number that fits
    monkeypatch.setattr(writer, "MOST_ENTRIES", 3)
    write_checkpoint([floats(*range(n)) for n in (10, 1000, 10)], tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        assert archive.testzip() is None
    assert b"PK\x06\x06" in (tmp_path / "a.pt").read_bytes()
    assert [each.shape for each in open_checkpoint(tmp_path / "a.pt").root] == [(10,), (1000,), (10,)]


def test_a_source_that_became_shorter_is_noticed_and_nothing_is_written(tmp_path: Path) -> None:
    torch.save(torch.ones(100_000), tmp_path / "old.pt")
    root = open_checkpoint(tmp_path / "old.pt").root
    os.truncate(tmp_path / "old.pt", 1000)
    with pytest.raises(Damaged, match="changed meanwhile"):
        write_checkpoint(root, tmp_path / "new.pt")
    assert [each.name for each in tmp_path.iterdir()] == ["old.pt"]


def test_a_storage_whose_source_has_another_size_is_refused(tmp_path: Path) -> None:
    wrong = Tensor(Storage("float32", 3, "cpu", Inline(bytes(8))), 0, (3,), (1,))
    with pytest.raises(Damaged, match="12 bytes, and its source 8"):
        write_checkpoint(wrong, tmp_path / "new.pt")
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_gives_other_bytes_than_it_says_is_noticed(tmp_path: Path) -> None:
    size = (1 << 20) + 1  # a ``Counted`` gives whole megabytes only
    with pytest.raises(Damaged, match="gave 1048576 bytes instead of 1048577"):
        write_checkpoint(Tensor(Storage("uint8", size, "cpu", Counted(size)), 0, (size,), (1,)), tmp_path / "new.pt")
    assert list(tmp_path.iterdir()) == []


def test_foreign_objects_are_never_written(tmp_path: Path) -> None:
    for value in (PickledObject(Global("a", "B")), Global("os", "system")):
        with pytest.raises(Unsafe, match="at x"):
            write_checkpoint({"x": value}, tmp_path / "new.pt")
    with pytest.raises(CannotConvert, match="a range can't be written"):
        write_checkpoint({"x": range(3)}, tmp_path / "new.pt")
    assert list(tmp_path.iterdir()) == []


# the file as a whole


def test_an_existing_file_is_only_replaced_when_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError, match="exists already"):
        write_checkpoint({}, path)
    assert path.read_bytes() == b"mine"
    write_checkpoint({}, path, overwrite=True)
    assert torch.load(path) == {}


def test_a_file_can_be_written_over_its_own_source(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"w": torch.arange(1000.0)}, path)
    root = open_checkpoint(path).root
    write_checkpoint({"first": floats(9), **root}, path, overwrite=True)
    got = torch.load(path)
    assert (got["first"].tolist(), got["w"].sum().item()) == ([9.0], 499500.0)


def test_permissions_come_from_the_file_that_is_replaced_or_named(tmp_path: Path) -> None:
    source, path = tmp_path / "source.pt", tmp_path / "a.pt"
    source.write_bytes(b"")
    source.chmod(0o640)
    write_checkpoint({}, path, like=source)
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o604)
    write_checkpoint({}, path, overwrite=True)
    assert path.stat().st_mode & 0o777 == 0o604


def test_a_new_file_gets_the_permissions_of_new_files(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        write_checkpoint({}, tmp_path / "a.pt")
    finally:
        os.umask(mask)
    assert (tmp_path / "a.pt").stat().st_mode & 0o777 == 0o640


def test_a_symbolic_link_stays_one_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "a.pt"
    link.symlink_to(tmp_path / "real" / "b.pt")
    write_checkpoint({"a": 1}, link)
    assert link.is_symlink()
    assert torch.load(tmp_path / "real" / "b.pt") == {"a": 1}


def test_a_read_only_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(b"mine")
    path.chmod(0o444)
    with pytest.raises(PermissionError, match="read-only"):
        write_checkpoint({}, path, overwrite=True)


def test_a_folder_that_isnt_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is no folder; make it first"):
        write_checkpoint({}, tmp_path / "none" / "a.pt")
    with pytest.raises(CannotConvert, match="no regular file"):
        write_checkpoint({}, tmp_path, overwrite=True)


def test_too_little_space_is_said_before_anything_is_written(tmp_path: Path) -> None:
    size = 1 << 55
    tree = Tensor(Storage("uint8", size, "cpu", FileRange(tmp_path / "x", 0, size)), 0, (size,), (1,))
    (tmp_path / f".a.pt.123{UNFINISHED}").write_bytes(b"")
    with pytest.raises(OSError, match=r"GB left, and the file needs 36028797.0 GB; .*may be deleted"):
        write_checkpoint(tree, tmp_path / "a.pt")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_after_an_error_there_is_what_was_there_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(b"mine")

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match="No space"):
        write_checkpoint({}, path, overwrite=True)
    assert path.read_bytes() == b"mine"
    assert [each.name for each in tmp_path.iterdir()] == ["a.pt"]


def test_the_file_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, name=name, original=original: (done.append(name), original(*args)))
    write_checkpoint({}, tmp_path / "a.pt")
    assert done == ["fsync", "replace", "fsync"]


WRITER = """
import sys
from amp_migrate.convert.opening import open_checkpoint
from amp_migrate.convert.writing import write_checkpoint
source, target = sys.argv[1:]
print("ready", flush=True)
while True:
    write_checkpoint(open_checkpoint(source).root, target, overwrite=True)
    write_checkpoint({"other": 1, **open_checkpoint(source).root}, target, overwrite=True)
"""


def test_kill_9_leaves_the_source_and_a_whole_file_or_none(tmp_path: Path) -> None:
    source, target = tmp_path / "source.pt", tmp_path / "target.pt"
    torch.save({"w": torch.randn(2_000_000)}, source)
    before = zlib.crc32(source.read_bytes())
    seen = set()
    for round_ in range(20):
        if round_ % 2:
            target.unlink(missing_ok=True)
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(source), str(target)], cwd=ROOT, stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            time.sleep(random.uniform(0, 0.06))
            child.send_signal(signal.SIGKILL)
        seen.add(target.exists())
        if target.exists():
            with zipfile.ZipFile(target) as archive:
                assert archive.testzip() is None
    assert zlib.crc32(source.read_bytes()) == before
    assert True in seen
    assert list(tmp_path.glob(f".*{UNFINISHED}"))  # kills did fall into the writing, and what is left hurts nobody
    write_checkpoint({"after": 1}, target, overwrite=True)
    assert torch.load(target) == {"after": 1}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("again", [lambda path: None, lambda path: path.unlink()], ids=["in place", "another file"])
def test_a_source_that_changes_between_opening_and_writing_is_an_error(
    zipped: bool, again: Any, tmp_path: Path
) -> None:
    source, target = tmp_path / "a.pt", tmp_path / "b.pt"
    torch.save({"w": torch.ones(100)}, source, _use_new_zipfile_serialization=zipped)
    root = open_checkpoint(source).root
    again(source)
    torch.save({"w": torch.zeros(100)}, source, _use_new_zipfile_serialization=zipped)
    os.utime(source, (1, 1))
    with pytest.raises(Damaged, match="changed meanwhile"):
        write_checkpoint(root, target)
    assert not target.exists()
