"""Opening reads every format that torch and pickle have written, and turns harmless classes into plain data."""

from __future__ import annotations

import argparse
import datetime
import decimal
import fractions
import gzip
import pathlib
import pickle
import subprocess
import sys
import types
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from amp_migrate.convert.errors import Damaged, Unsafe
from amp_migrate.convert.foreign import refuse_foreign
from amp_migrate.convert.opening import MAX_DEPTH, open_checkpoint
from amp_migrate.convert.records import Call, Inline, PickledObject, Storage, Tensor
from amp_migrate.convert.tree import place, walk

from .made_files import PROTO, legacy_file, named, number, plain_pickle, storage_id, tensor, text, torch_zip


def opened(value: Any, folder: Path, protocol: int = 2) -> Any:
    path = folder / "a.pkl"
    path.write_bytes(pickle.dumps(value, protocol))
    return open_checkpoint(path).root


PLAIN = [
    None,
    [True, False, 0, -1, 1 << 40, -(1 << 80), 10**1000, 0.5, float("inf")],
    ["", "ä", "\U0001f600", "a\nb\\u0041", "'", '"'],
    [b"", bytes(range(256)), bytearray(b"abc")],
    [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
    {"a": [1, {2: 3}], (1, "b"): None, 2.5: 1, None: 2},
    [set(), {1, 2}, frozenset([3, "x"]), {frozenset([1]): 2}],
    OrderedDict([("b", 1), ("a", 2)]),
    Counter({"x": 3}),
    [1j, complex(0.5, -2)],
]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
def test_plain_data_is_read_in_every_protocol(value: Any, protocol: int, tmp_path: Path) -> None:
    got = opened(value, tmp_path, protocol)
    assert got == value
    assert repr(got) == repr(value) or isinstance(value, list)


@pytest.mark.parametrize("protocol", range(6))
def test_sharing_and_circles_are_read_in_every_protocol(protocol: int, tmp_path: Path) -> None:
    items: list[Any] = ["x"]
    value = {"a": items, "b": items}
    items.append(value)
    got = opened(value, tmp_path, protocol)
    assert got["a"] is got["b"]
    assert got["a"][1] is got


def test_ints_are_read_that_python_itself_is_too_careful_for(tmp_path: Path) -> None:
    path = plain_pickle(tmp_path / "a.pkl", b"L-" + b"9" * 5000 + b"L\n.")
    assert open_checkpoint(path).root == 1 - 10**5000


def test_python_2s_pickles_are_read(tmp_path: Path) -> None:
    path = plain_pickle(tmp_path / "a.pkl", b"(dp0\nS'a\\xc3\\xa4'\np1\nI01\nsU\x02\xff\xfeL5L\nsVx\\u00e4\nF0.5\ns.")
    assert open_checkpoint(path).root == {"aä": True, b"\xff\xfe": 5, "xä": 0.5}
    path = plain_pickle(tmp_path / "b.pkl", b"ccollections\nOrderedDict\np2\n((lp3\n(lp4\nS'k'\naI1\naatRp5\n.")
    assert open_checkpoint(path).root == OrderedDict(k=1)
    path = plain_pickle(tmp_path / "c.pkl", b"c__builtin__\nset\n((lI1\natR.")
    assert open_checkpoint(path).root == {1}


class TypedNamespace(argparse.Namespace):
    """A class of somebody else."""


BECOMES_PLAIN: list[tuple[Any, Any]] = [
    (argparse.Namespace(lr=0.1, fp16=True), {"lr": 0.1, "fp16": True}),
    (argparse.Namespace(), {}),
    (types.SimpleNamespace(a=argparse.Namespace(b=1)), {"a": {"b": 1}}),
    (defaultdict(list, {1: [2]}), {1: [2]}),
    (defaultdict(None, {1: 2}), {1: 2}),
    (deque([1, 2], maxlen=5), [1, 2]),
    (range(2, 9, 3), [2, 5, 8]),
    (pathlib.PurePosixPath("/data/x.pt"), "/data/x.pt"),
    (pathlib.PureWindowsPath("C:\\data\\x.pt"), "C:\\data\\x.pt"),
    (datetime.datetime(2019, 8, 27, 1, 2, 3, 4), "2019-08-27T01:02:03.000004"),
    (datetime.date(2019, 8, 27), "2019-08-27"),
    (datetime.time(1, 2), "01:02:00"),
    (datetime.timedelta(days=1, microseconds=5), 86400.000005),
    (decimal.Decimal("0.10"), "0.10"),
    (fractions.Fraction(1, 3), "1/3"),
    (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
    (np.float64(0.1), 0.1),
    (np.float32(0.5), 0.5),
    (np.int64(-3), -3),
    (np.uint64(2**64 - 1), 2**64 - 1),
    (np.bool_(True), True),
    (np.str_("ä"), "ä"),
    (np.complex64(1 + 2j), 1 + 2j),
    (np.array(["a", "bc"]), ["a", "bc"]),
    (np.array([[2**64 - 1, 0]], dtype=np.uint64), [[2**64 - 1, 0]]),
    ({np.int64(3): 1, pathlib.PurePosixPath("a"): 2}, {3: 1, "a": 2}),
    ((1, [np.float64(2.0)], {np.int32(5)}), (1, [2.0], {5})),
]


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("value, plain", BECOMES_PLAIN, ids=lambda value: type(value).__name__)
def test_harmless_classes_become_plain_data_with_a_note(value: Any, plain: Any, protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps({"epoch": 1, "args": value}, protocol))
    found = open_checkpoint(path)
    assert found.root == {"epoch": 1, "args": plain}
    assert type(found.root["args"]) is type(plain)
    assert found.report.notes
    assert all(note.place.startswith("args") and "becomes" in note.text for note in found.report.notes)
    refuse_foreign(found.root)


def values_of(found: Tensor) -> list[Any]:
    """The elements of a tensor record, as torch reads them."""
    assert isinstance(found.storage.source, Inline)
    flat = torch.tensor(np.frombuffer(found.storage.source.data, dtype=found.dtype))
    return flat.as_strided(found.shape, found.stride, found.offset).tolist()


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    "code, dtype",
    [("f2", "float16"), ("f4", "float32"), ("f8", "float64"), ("i2", "int16"), ("i4", "int32"), ("i8", "int64")]
    + [("u1", "uint8"), ("i1", "int8"), ("b1", "bool"), ("c8", "complex64"), ("c16", "complex128")]
    + [("u2", "int32"), ("u4", "int64"), ("u8", "int64")],
)
def test_numpy_arrays_become_tensors(code: str, dtype: str, order: str, protocol: int, tmp_path: Path) -> None:
    array = np.arange(6).reshape(2, 3).astype(f"{order}{code}")
    for made in (array, np.asfortranarray(array), array[:, ::2].copy(), np.array(array[0, 1])):
        got = opened(made, tmp_path, protocol)
        assert (got.dtype, got.shape) == (dtype, made.shape)
        assert values_of(got) == made.tolist()


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("name", ["float32", "float16", "int64", "bool", "uint16", ">f4", "<U5", "|S3"])
def test_a_numpy_dtype_by_itself_becomes_its_name(name: str, protocol: int, tmp_path: Path) -> None:
    shared = np.dtype(name)
    got = opened({"dtype": shared, "array": np.zeros(2, "float32"), "again": [shared]}, tmp_path, protocol)
    assert got["dtype"] == name and got["again"] == [name]
    assert got["array"].dtype == "float32"


def test_numpy_data_that_torch_has_nothing_for_stays_foreign(tmp_path: Path) -> None:
    for made in (np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]), np.array(["2019"], dtype="M8[Y]")):
        assert isinstance(opened(made, tmp_path), PickledObject)
    for made in (np.array([1, None], dtype=object), np.longdouble(1)):
        assert isinstance(opened(made, tmp_path), PickledObject)


def test_a_class_that_only_looks_like_a_harmless_one_stays_foreign(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps(TypedNamespace(a=1)))
    found = open_checkpoint(path)
    assert found.root.attributes == {"a": 1}
    assert [name.rpartition(".")[2] for name in found.foreign] == ["TypedNamespace"]


def test_a_configuration_packages_dictionary_becomes_a_dict(tmp_path: Path) -> None:
    body = named("easydict", "EasyDict") + b")\x81}(" + text("a") + b"K\x01u}" + text("a") + b"K\x01sb."
    odd = named("easydict", "EasyDict") + b")\x81}" + text("hidden") + named("os", "system") + b"sb."
    body = body.replace(b"\x81}(", b"\x81(")
    assert open_checkpoint(plain_pickle(tmp_path / "a.pkl", PROTO + body)).root == {"a": 1}
    with pytest.raises(Unsafe, match=r"easydict.EasyDict at the whole file(.|\n)*os.system at hidden"):
        refuse_foreign(open_checkpoint(plain_pickle(tmp_path / "b.pkl", PROTO + odd)).root)


def test_tensors_of_plain_pickles_are_read(tmp_path: Path) -> None:
    got = opened({"w": torch.arange(6.0).view(2, 3).t()}, tmp_path)["w"]
    assert (got.shape, got.stride, got.dtype) == ((3, 2), (1, 3), "float32")
    assert values_of(got) == torch.arange(6.0).view(2, 3).t().tolist()


def test_storage_views_of_old_torch_are_read(tmp_path: Path) -> None:
    view = b"(" + text("v") + number(1) + number(3) + b"t"
    storage = (
        b"(" + text("storage") + named("torch", "FloatStorage") + text("0") + text("cpu") + number(4) + view + b"tQ"
    )
    data = b"".join(bytes([n]) * 4 for n in range(4))
    body = PROTO + b"]" + tensor(storage, 1, (2,)) + b"a" + storage + b"a."
    part, alone = open_checkpoint(legacy_file(tmp_path / "a.pt", body, {"0": data})).root
    assert (part.offset, part.shape, part.storage.numel) == (2, (2,), 4)
    assert isinstance(alone, Storage)
    assert b"".join(alone.source.chunks()) == data[4:]
    beyond = PROTO + tensor(storage, 2, (2,)) + b"."
    with pytest.raises(Damaged, match="reaches to element 3 of a storage that has 3"):
        open_checkpoint(legacy_file(tmp_path / "b.pt", beyond, {"0": data}))


def test_the_source_text_of_classes_in_legacy_files_is_passed_over(tmp_path: Path) -> None:
    cls = b"(" + text("module") + named("models", "Net") + text("models.py") + text("class Net: ...") + b"tQ"
    found = open_checkpoint(legacy_file(tmp_path / "a.pt", PROTO + cls + b")\x81}" + text("a") + b"Nsb."))
    assert str(found.root.cls) == "models.Net"
    assert found.foreign == {"models.Net": ("",)}


def test_big_endian_files_say_so(tmp_path: Path) -> None:
    body = PROTO + tensor(storage_id()) + b"."
    found = open_checkpoint(torch_zip(tmp_path / "a.pt", body, {"data/0": bytes(16), "byteorder": b"big"}))
    assert (found.byteorder, found.root.storage.big_endian) == ("big", True)


def test_apex_objects_can_be_looked_into(tmp_path: Path) -> None:
    body = (
        named("apex.amp.scaler", "LossScaler")
        + b")\x81}"
        + text("_loss_scale")
        + b"G"
        + b"\x40\xf0"
        + bytes(6)
        + b"sb."
    )
    found = open_checkpoint(torch_zip(tmp_path / "a.pt", PROTO + body)).root
    assert found.attributes == {"_loss_scale": 65536.0}


def test_the_writer_is_told(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "zip.pt")
    torch.save({}, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({}, 4))
    found = [open_checkpoint(tmp_path / name) for name in ("zip.pt", "legacy.pt", "a.pkl")]
    assert [each.format_name for each in found] == ["zip", "legacy", "pickle"]
    assert found[0].writer["version"] == "3"
    assert [each.writer["pickle protocol"] for each in found] == [2, 2, 4]


NO_CHECKPOINTS = [
    (b"", "an empty file"),
    (bytes(4096), "a file of zeros"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 123\n", "pointer of Git LFS(.*)git lfs pull"),
    (b"<!DOCTYPE html>\n<html>404</html>", "a web page"),
    (b"\n\n <html>", "a web page"),
    (gzip.compress(b"x" * 100), "gzip(.*)gunzip"),
    (b"\x89HDF\r\n\x1a\n" + bytes(100), "an HDF5"),
    (b"\x40\0\0\0\0\0\0\0" + b'{"w":{"dtype":"F32"}}', "safetensors"),
    (b"\x80\x02\0\0\0\0\0\0" + b'{"w":{"dtype":"F32"}}', "safetensors"),
    (b"\x93NUMPY\x01\0", "numpy"),
    (b"hello, this is no checkpoint\n", "a text file"),
    (b'{"model": 1}', "a text file"),
    (b"[1, 2, 3]", "a text file"),
    (b"\xca\xfe\xba\xbe" * 100, "no file that torch.save or pickle wrote"),
    (b"PK\x05\x06" + bytes(18), "a zip file without any content"),
    (bytes(257) + b"ustar\0", "a tar file(.*)older than Apex"),
]


@pytest.mark.parametrize("data, said", NO_CHECKPOINTS, ids=[said for _, said in NO_CHECKPOINTS])
def test_what_is_no_checkpoint_is_named(data: bytes, said: str, tmp_path: Path) -> None:
    path = plain_pickle(tmp_path / "a.pt", data)
    with pytest.raises(Damaged, match=rf"a\.pt: this is {said}|a\.pt: this is a {said}"):
        open_checkpoint(path)


def test_a_folder_and_a_missing_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="a folder"):
        open_checkpoint(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_checkpoint(tmp_path / "none.pt")


def test_a_torchscript_archive_is_named(tmp_path: Path) -> None:
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "a.pt"))
    with pytest.raises(Damaged, match="TorchScript archive: open it with torch.jit.load"):
        open_checkpoint(tmp_path / "a.pt")


def test_nesting_is_read_up_to_the_limit(tmp_path: Path) -> None:
    value: Any = []
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert opened(value, tmp_path) == value
    with pytest.raises(Damaged, match=f"more than {MAX_DEPTH} deep"):
        opened([value], tmp_path)


def test_places_are_written_as_people_write_them() -> None:
    mark = Call(None, ())  # type: ignore[arg-type]
    tree = {"optimizer": {"param_groups": [0, {"odd key": (mark,)}], 5: {True: [mark]}}}
    ways = [place(way) for value, way in walk({"x": tree, 3: [Call(None, ())]}) if value is mark]  # type: ignore[arg-type]
    assert ways == ["x.optimizer.param_groups[1]['odd key'][0]"]


def test_opening_imports_neither_torch_nor_numpy(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "n": np.float64(1.0)}, tmp_path / "a.pt")
    program = (
        "import sys; from amp_migrate.convert.opening import open_checkpoint;"
        f"open_checkpoint({str(tmp_path / 'a.pt')!r}); assert not {{'torch', 'numpy', 'apex'}} & set(sys.modules)"
    )
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", program], cwd=root).returncode == 0
