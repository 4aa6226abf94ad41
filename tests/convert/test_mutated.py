"""Files with random damage: opening and writing them ends soon, in a value or in a documented exception.

The suite does a thousand. Ten thousand: ``python -m pytest tests/convert/test_mutated.py -m slow``; any number:
``AMP_MIGRATE_MUTATIONS=100000``.
"""

from __future__ import annotations

import os
import pickle
import random
import time
import zipfile
from pathlib import Path
from typing import Any, Callable

import pytest
import torch

from amp_migrate.convert.errors import CannotConvert
from amp_migrate.convert.foreign import drop_foreign
from amp_migrate.convert.opening import open_checkpoint
from amp_migrate.convert.writing import write_checkpoint

from .made_files import MAGIC_NUMBER, torch_zip

SECONDS = 5
SEED = 20190827


def a_checkpoint() -> dict[str, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    amp = {"loss_scaler0": {"loss_scale": 65536.0, "unskipped": 7}}
    odd = [torch.sparse_coo_tensor([[0], [1]], [2.0], (2, 2)), {1, 2}, b"bytes", 1j, (1, "a"), 1 << 70, torch.Size([2])]
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "amp": amp, "odd": odd, "f": float}


def flip(data: bytearray, choose: random.Random) -> None:
    data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)


def overwrite(data: bytearray, choose: random.Random) -> None:
    start = choose.randrange(len(data))
    count = choose.choice((1, 2, 4, 8))
    data[start : start + count] = choose.choice(
        (bytes(count), b"\xff" * count, bytes(choose.randrange(256) for _ in range(count)))
    )


def cut(data: bytearray, choose: random.Random) -> None:
    del data[choose.randrange(len(data)) :]


def remove(data: bytearray, choose: random.Random) -> None:
    start = choose.randrange(len(data))
    del data[start : start + choose.randrange(1, 30)]


def repeat(data: bytearray, choose: random.Random) -> None:
    start = choose.randrange(len(data))
    part = data[start : start + choose.randrange(1, 200)]
    data[start:start] = part


def operation(data: bytearray, choose: random.Random) -> None:
    """Put an operation of a pickle where another byte was."""
    data[choose.randrange(len(data))] = choose.choice(
        b"()tlduaesbRQcioPpqrghj012N\x80\x81\x85\x86\x87\x8a\x8b\x92\x93\x94"
    )


DAMAGE: list[Callable[[bytearray, random.Random], None]] = [flip, overwrite, cut, remove, repeat, operation, operation]


def originals(folder: Path) -> list[tuple[bytes, Callable[[Path, bytes], object]]]:
    """The bytes to damage, and how a file is made of them: a pickle goes into a zip file with a right checksum."""
    value = a_checkpoint()
    torch.save(value, folder / "zip.pt")
    torch.save(value, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    with zipfile.ZipFile(folder / "zip.pt") as archive:
        root = archive.namelist()[0].split("/")[0]
        storages = {name[len(root) + 1 :]: archive.read(name) for name in archive.namelist() if "/data/" in name}
        inner = archive.read(f"{root}/data.pkl")
    legacy = (folder / "legacy.pt").read_bytes()
    assert pickle.loads(legacy[:20]) == MAGIC_NUMBER
    return [
        ((folder / "zip.pt").read_bytes(), Path.write_bytes),
        (inner, lambda path, data: torch_zip(path, data, storages)),
        (legacy, Path.write_bytes),
        (pickle.dumps({"plain": [1, "a", {2.5: None}, (1,) * 5, b"x"] * 5}, 0), Path.write_bytes),
        (pickle.dumps({"plain": [1, "a", {2.5: None}, {1, 2}, b"x"] * 5, "w": torch.ones(2)}, 4), Path.write_bytes),
    ]


def survive(path: Path, out: Path) -> bool:
    """Open, clean and write a file. Return whether that worked; only what is documented may be raised."""
    start = time.perf_counter()
    try:
        found = open_checkpoint(path)
        write_checkpoint(drop_foreign(found.root, found.report), out, overwrite=True)
    except (CannotConvert, OSError):
        return False
    finally:
        assert time.perf_counter() - start < SECONDS
    return True


def damage_and_open(count: int, folder: Path) -> int:
    """Return how many of ``count`` damaged files could be converted all the same."""
    torch.manual_seed(SEED)
    choose = random.Random(SEED)
    found = originals(folder)
    path, out = folder / "damaged.pt", folder / "out.pt"
    converted = 0
    for number in range(count):
        original, make = found[number % len(found)]
        data = bytearray(original)
        for _ in range(choose.choice((1, 1, 1, 2, 5))):
            choose.choice(DAMAGE)(data, choose)
            data = data or bytearray(b"N")
        make(path, bytes(data))
        try:
            converted += survive(path, out)
        except BaseException:
            (folder / f"killer-{number}.pt").write_bytes(path.read_bytes())
            raise
    return converted


@pytest.mark.filterwarnings("ignore:Sparse invariant")
def test_a_thousand_damaged_files_raise_only_what_is_documented(tmp_path: Path) -> None:
    count = int(os.environ.get("AMP_MIGRATE_MUTATIONS", "1000"))
    converted = damage_and_open(count, tmp_path)
    assert 0 < converted < count  # some damage hits only values


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sparse invariant")
def test_ten_thousand_damaged_files_raise_only_what_is_documented(tmp_path: Path) -> None:
    damage_and_open(10_000, tmp_path)


@pytest.mark.filterwarnings("ignore:Sparse invariant")
def test_the_undamaged_files_convert(tmp_path: Path) -> None:
    for data, make in originals(tmp_path):
        make(tmp_path / "a.pt", data)
        assert survive(tmp_path / "a.pt", tmp_path / "out.pt")
