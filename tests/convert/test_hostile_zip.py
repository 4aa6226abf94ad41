"""Zip files that aren't what they say: each is refused, says why, and costs nothing."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import Callable

import pytest

from amp_migrate.convert.errors import Damaged
from amp_migrate.convert.opening import open_checkpoint

from .made_files import PROTO, storage_id, tensor, torch_zip

PICKLE = PROTO + tensor(storage_id()) + b"."
VALUES = bytes(range(16))


def good(path: Path) -> bytes:
    return torch_zip(path, PICKLE, {"data/0": VALUES}).read_bytes()


def patched(data: bytes, magic: bytes, number: int, offset: int, value: bytes) -> bytes:
    """Write ``value`` at ``offset`` of the ``number``-th header that begins with ``magic``."""
    position = -1
    for _ in range(number + 1):
        position = data.index(magic, position + 1)
    return data[: position + offset] + value + data[position + offset + len(value) :]


LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
#: entries in their order: data.pkl, version, data/0
STORAGE = 2


def overlapping(data: bytes) -> bytes:
    """The directory's third entry says that it begins where the second does."""
    second = data.index(LOCAL, 1)
    return patched(data, CENTRAL, STORAGE, 42, struct.pack("<L", second))


def not_utf8(data: bytes) -> bytes:
    return patched(patched(data, CENTRAL, STORAGE, 9, b"\x08"), CENTRAL, STORAGE, 46, b"\xff")


LIES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "cut off": ("no directory at its end", lambda data: data[:-30]),
    "cut in the middle": ("no directory at its end", lambda data: data[: len(data) // 2]),
    "something behind": ("end of the zip file is broken", lambda data: data + b"more"),
    "something before": ("directory is broken|no room", lambda data: LOCAL + bytes(9) + data),
    "a directory beyond the file": ("no room", lambda data: patched(data, END, 0, 16, b"\xf0\xff\xff\x00")),
    "too many entries": ("no room|500000", lambda data: patched(data, END, 0, 10, b"\xfe\xff")),
    "fewer entries": ("missing", lambda data: patched(data, END, 0, 10, b"\x02\x00")),
    "a bigger size": ("overlaps|two sizes", lambda data: patched(data, CENTRAL, STORAGE, 20, b"\xff\xff\x00\x00")),
    "two sizes": ("two sizes|other sizes", lambda data: patched(data, CENTRAL, STORAGE, 24, b"\x20\x00\x00\x00")),
    "a smaller size": ("other sizes|two sizes", lambda data: patched(data, CENTRAL, STORAGE, 20, b"\x08\x00\x00\x00")),
    "another checksum": ("other sizes", lambda data: patched(data, CENTRAL, STORAGE, 16, b"abcd")),
    "another name": ("isn't where", lambda data: patched(data, LOCAL, STORAGE, 38, b"xxxx")),
    "another method": ("packed by method", lambda data: patched(data, CENTRAL, STORAGE, 10, b"\x08\x00")),
    "an encrypted entry": ("encrypted", lambda data: patched(data, CENTRAL, STORAGE, 8, b"\x01\x00")),
    "a name that is no text": ("UTF-8", not_utf8),
    "overlapping entries": ("overlaps", overlapping),
    "a pickle that was changed": ("checksum", lambda data: data.replace(b"FloatStorage", b"HalfStorage\n")),
    "a local header that isn't there": ("isn't where", lambda data: patched(data, LOCAL, STORAGE, 0, b"XX")),
}


@pytest.mark.parametrize("said, lie", LIES.values(), ids=LIES)
def test_a_zip_file_that_contradicts_itself_is_refused(
    said: str, lie: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(lie(good(path)))
    with pytest.raises(Damaged) as caught:
        open_checkpoint(path)
    assert any(each in str(caught.value) for each in said.split("|")), caught.value


def zipped(entries: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return file.getvalue()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    "entries, said",
    [
        ([("archive/data.pkl", PICKLE), ("archive/data/0", VALUES), ("archive/data/0", VALUES)], "two entries called"),
        ([("archive/data.pkl", PICKLE), ("../../home/x", b"")], "leads out of its folder"),
        ([("archive/data.pkl", PICKLE), ("/etc/passwd", b"")], "leads out of its folder"),
        ([("archive/data.pkl", PICKLE), ("C:\\x", b"")], "leads out of its folder"),
        ([("a/data.pkl", PICKLE), ("b/data.pkl", PICKLE)], "several data.pkl"),
        ([("word/document.xml", b"<x/>")], "no data.pkl, so none of torch.save's; it holds 'word/document.xml'"),
        ([("a/data.pkl", PICKLE), ("a/constants.pkl", b"")], "TorchScript archive: open it with torch.jit.load"),
        ([("a/.data/extern_modules", b"")], "torch.package archive"),
        ([("a/data.pkl", PICKLE), ("a/data/0", VALUES), ("a/byteorder", b"middle")], "byte order is 'middle'"),
    ],
)
def test_a_zip_file_with_odd_entries_is_refused(entries: list[tuple[str, bytes]], said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(zipped(entries))
    with pytest.raises(Damaged) as caught:
        open_checkpoint(path)
    assert said in str(caught.value)


def test_a_checkpoint_that_was_zipped_again_opens(tmp_path: Path) -> None:
    path = torch_zip(tmp_path / "a.pt", PICKLE, {"data/0": VALUES}, compressed=True)
    assert open_checkpoint(path).root.storage.source.data == VALUES


@pytest.mark.parametrize("body", [b"\0" * (50 << 20), PROTO + b"N0" * (10 << 20) + b"N."])
def test_a_zip_bomb_is_refused_before_it_grows(body: bytes, tmp_path: Path) -> None:
    path = torch_zip(tmp_path / "a.pt", body, compressed=True)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(Damaged, match="is compressed and grows to"):
        open_checkpoint(path)


def test_many_small_bombs_are_refused_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amp_migrate.convert.opening.zip_directory.MAX_INFLATED", 100_000)
    storages = {f"data/{key}": bytes(range(256)) * 64 for key in range(10)}
    body = b"]" + b"".join(tensor(storage_id(f"{key}", 4096)) + b"a" for key in range(10))
    assert len(open_checkpoint(torch_zip(tmp_path / "stored.pt", PROTO + body + b".", storages)).root) == 10
    with pytest.raises(Damaged, match="is compressed and grows to"):
        open_checkpoint(torch_zip(tmp_path / "bombs.pt", PROTO + body + b".", storages, compressed=True))
