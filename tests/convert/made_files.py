"""Checkpoints made byte by byte: pickles that no pickler writes, in each of the three file formats."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Callable, Mapping

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
PROTO = b"\x80\x04"


def text(value: str) -> bytes:
    """The operation that puts a string on the stack."""
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def named(module: str, name: str) -> bytes:
    """The operation that names a class or function."""
    return f"c{module}\n{name}\n".encode()


def plain_pickle(path: Path, body: bytes) -> Path:
    path.write_bytes(body)
    return path


def torch_zip(path: Path, body: bytes, entries: Mapping[str, bytes] | None = None, compressed: bool = False) -> Path:
    """A file like torch.save's with ``body`` as its pickle; ``entries`` come beside it."""
    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("archive/data.pkl", body)
        for name, data in {"version": b"3\n", **(entries or {})}.items():
            archive.writestr(f"archive/{name}", data)
    return path


def legacy_file(path: Path, body: bytes, storages: Mapping[str, bytes] | None = None, item: int = 4) -> Path:
    """A file like torch.save's before 1.6 with ``body`` as its pickle."""
    file = io.BytesIO()
    for value in (MAGIC_NUMBER, 1001, {"little_endian": True, "protocol_version": 1001, "type_sizes": {}}):
        pickle.dump(value, file, protocol=2)
    file.write(body)
    pickle.dump(list(storages or {}), file, protocol=2)
    for data in (storages or {}).values():
        file.write(struct.pack("<q", len(data) // item) + data)
    path.write_bytes(file.getvalue())
    return path


#: writes a pickle into a file of each format
FORMATS: Mapping[str, Callable[[Path, bytes], Path]] = {
    "plain": plain_pickle,
    "zip": torch_zip,
    "legacy": legacy_file,
}


def storage_id(key: str = "0", numel: int = 4, cls: str = "FloatStorage", legacy: bool = False) -> bytes:
    """The operations that ask for a storage by torch's persistent id."""
    view = b"N" if legacy else b""
    return b"(" + text("storage") + named("torch", cls) + text(key) + text("cpu") + number(numel) + view + b"tQ"


def tensor(storage: bytes, offset: int = 0, shape: tuple[int, ...] = (4,), stride: tuple[int, ...] = (1,)) -> bytes:
    """The operations that build a tensor."""
    sizes, steps = (b"(" + b"".join(map(number, each)) + b"t" for each in (shape, stride))
    hooks = named("collections", "OrderedDict") + b")R"
    function = named("torch._utils", "_rebuild_tensor_v2")
    return function + b"(" + storage + number(offset) + sizes + steps + b"\x89" + hooks + b"tR"
