"""What no layout touches comes out as it went in: opened, written and loaded by torch, every value is the same."""

from __future__ import annotations

import ctypes
import math
import struct
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any, Callable

import pytest
import torch

from amp_migrate.convert.opening import open_checkpoint
from amp_migrate.convert.writing import write_checkpoint

TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
#: torch's safe reader knows sets, bytes and complex numbers since 2.6, quantized tensors and new dtypes since 2.4
OPTIONS = {"weights_only": True} if TORCH >= (2, 6) else {}
UNSAFE = {"weights_only": False} if TORCH >= (1, 13) else {}


def saved(value: Any, path: Path, is_zip: bool = True) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=is_zip)
    return path


def carried(value: Any, folder: Path, is_zip: bool = True) -> Any:
    """Return ``value`` after torch.save, opening, writing and torch.load."""
    write_checkpoint(open_checkpoint(saved(value, folder / "old.pt", is_zip)).root, folder / "new.pt", overwrite=True)
    return torch.load(folder / "new.pt", **OPTIONS)


def bits(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor's elements, in their order."""
    plain = tensor.detach().resolve_conj() if hasattr(tensor, "resolve_conj") else tensor.detach()
    flat = plain.clone(memory_format=torch.contiguous_format).reshape(-1)
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def same_tensor(a: torch.Tensor, b: torch.Tensor) -> bool:
    facts = ("dtype", "shape", "requires_grad", "layout", "is_quantized", "device")
    if type(a) is not type(b) or any(getattr(a, fact) != getattr(b, fact) for fact in facts):
        return False
    if a.layout is torch.sparse_coo:
        return same_tensor(a._indices(), b._indices()) and same_tensor(a._values(), b._values())
    if a.layout is not torch.strided:
        return torch.equal(a.to_dense(), b.to_dense())
    if a.device.type == "meta":
        return a.stride() == b.stride()
    where = a.stride() == b.stride() and a.storage_offset() == b.storage_offset()
    if a.is_quantized:
        return where and torch.equal(a.int_repr(), b.int_repr()) and a.qscheme() == b.qscheme()
    lazy = hasattr(a, "is_conj") and a.is_conj() != b.is_conj()
    return where and not lazy and bits(a) == bits(b)


def same(a: Any, b: Any) -> bool:
    """Whether two values are the same, down to types, order and the bits of numbers."""
    if isinstance(a, torch.Tensor):
        return same_tensor(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        inner = same(vars(a), vars(b)) if hasattr(a, "__dict__") else True
        return inner and same(list(a.items()), list(b.items()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    return bool(a == b)


def with_metadata() -> OrderedDict[str, Any]:
    state = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).state_dict()
    assert "version" in state._metadata["1"]
    return state


def quantized_per_channel() -> torch.Tensor:
    scales, zeros = torch.tensor([0.1, 0.2]), torch.tensor([0, 3])
    return torch.quantize_per_channel(torch.randn(2, 3), scales, zeros, 0, torch.quint8)


#: dtypes that ``torch.randint(...).to(dtype)`` can make
DTYPES = [
    *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
    *("complex128", "complex64", "complex32", "uint16", "uint32", "uint64"),
    *("float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz"),
]

VALUES: dict[str, Callable[[], Any]] = {
    **{name: (lambda name=name: torch.randint(0, 2, (3, 2)).to(getattr(torch, name))) for name in DTYPES},
    "nan payloads": lambda: torch.tensor([0x7FC12345, -1], dtype=torch.int32).view(torch.float32),
    "0-dim": lambda: torch.tensor(3.5),
    "empty": lambda: [torch.empty(0), torch.empty(0, 3), torch.empty(2, 0, dtype=torch.int64)],
    "transposed": lambda: torch.randn(3, 4).t(),
    "a slice with steps": lambda: torch.randn(10, 10)[1::3, 2::4],
    "expanded": lambda: torch.randn(1, 3).expand(5, 3),
    "channels last": lambda: torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "many dimensions": lambda: torch.randn([1] * 20 + [2]),
    "requires_grad": lambda: torch.randn(3, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.randn(3)),
    "frozen parameter": lambda: torch.nn.Parameter(torch.randn(3), requires_grad=False),
    "sparse": lambda: torch.sparse_coo_tensor([[0, 1], [2, 0]], [3.0, 4.0], (2, 3)),
    "quantized": lambda: torch.quantize_per_tensor(torch.randn(4), 0.1, 2, torch.qint8),
    "quantized, 32 bits": lambda: torch.quantize_per_tensor(torch.randn(4), 0.1, 2, torch.qint32),
    "quantized per channel": quantized_per_channel,
    "a state dict": with_metadata,
    "an optimizer": lambda: torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))]).state_dict(),
    "size, device, dtype": lambda: [torch.Size([1, 2]), torch.device("cpu"), torch.float16, torch.int64],
    "nested tuples": lambda: ((), (1,), (1, (2, 3)), (1, 2, 3), (1, 2, 3, 4), [(), [()]]),
    "ints": lambda: [0, -1, 255, 256, 65535, 65536, -(1 << 31), 1 << 31, -(1 << 63), 1 << 63, 7**500],
    "bools": lambda: [True, False, 1, 0],
    "floats": lambda: [0.0, -0.0, 1e-320, math.inf, -math.inf, math.nan, 0.1],
    "text": lambda: ["", "ä", "日本語", "\U0001f600", "\ud800 lone", "a\nb\0c", "x" * 300],
    "keys": lambda: {1: "a", "1": "b", 2.5: "c", (1, "x"): "d", None: "e", False: "f", b"g": "h", -0.5: 1},
    "long containers": lambda: {"list": list(range(2500)), "dict": {n: -n for n in range(2500)}, "tuple": (0,) * 2500},
    "ordered": lambda: OrderedDict([("b", 1), ("a", OrderedDict())]),
    "counter": lambda: Counter({3: 1, 2: 5}),
    "sets": lambda: [set(), {1, 2}, {"a", (1, 2)}],
    "bytes": lambda: [b"", bytes(range(256)), bytearray(b"xyz"), bytearray()],
    "complex": lambda: [1 + 2j, complex(math.inf, -0.0)],
}
if TORCH >= (2, 0):
    VALUES["compressed sparse"] = lambda: torch.tensor([[0.0, 2.0], [3.0, 0.0]]).to_sparse_csr()
    VALUES["conjugate"] = lambda: torch.randn(3, dtype=torch.complex64).conj()
    VALUES["meta"] = lambda: torch.empty(3, 2, device="meta")
    VALUES["a tensor with an attribute"] = lambda: _tagged()


def _tagged() -> torch.Tensor:
    made = torch.randn(2)
    made.tag = "x"  # type: ignore[attr-defined]
    return made


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
def test_a_value_comes_out_as_it_went_in(make: Callable[[], Any], is_zip: bool, tmp_path: Path) -> None:
    try:
        value = {"value": make()}
        saved(value, tmp_path / "try.pt", is_zip)
    except (AttributeError, RuntimeError, NotImplementedError, TypeError, KeyError) as error:
        pytest.skip(f"this torch can't make or save it: {error}")
    got = carried(value, tmp_path, is_zip)
    assert same(got, value)


def test_this_test_sees_differences() -> None:
    ones = torch.ones(2, 2)
    assert same([ones, 1.0], [ones.clone(), 1.0])
    others = [ones.double(), ones.t().t() * 2, ones.clone().requires_grad_(), torch.nn.Parameter(ones), ones[:1]]
    assert not any(same(ones, other) for other in others)
    assert not same(ones, torch.ones(2, 4)[:, ::2])
    assert not any([same(0.0, -0.0), same(1, True), same({"a": 1}, OrderedDict(a=1)), same({1: 2, 3: 4}, {3: 4, 1: 2})])
    assert not same(with_metadata(), OrderedDict(with_metadata()))


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
def test_what_is_shared_stays_shared(is_zip: bool, tmp_path: Path) -> None:
    base = torch.arange(12.0)
    items = [1, base]
    value = {"base": base, "again": base, "view": base[3:7], "matrix": base.view(3, 4).t(), "items": [items, items]}
    value["parameter"] = torch.nn.Parameter(base)
    got = carried(value, tmp_path, is_zip)
    assert got["base"] is got["again"] is got["items"][0][1]
    assert got["items"][0] is got["items"][1]
    got["base"].fill_(5)
    assert got["view"].tolist() == [5.0] * 4
    assert got["matrix"].sum() == 60.0
    assert got["parameter"].sum() == 60.0


def test_a_small_view_keeps_its_whole_storage(tmp_path: Path) -> None:
    got = carried(torch.arange(1000.0)[500:501], tmp_path)
    assert got.storage_offset() == 500
    assert got.as_strided((1,), (1,), 999).item() == 999.0


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_storage_by_itself_is_carried(tmp_path: Path) -> None:
    base = torch.arange(3.0)
    got = carried([base.storage(), base], tmp_path)
    assert got[0].tolist() == [0.0, 1.0, 2.0]
    got[1].fill_(7)
    assert got[0].tolist() == [7.0] * 3


def test_what_refers_to_itself_is_carried(tmp_path: Path) -> None:
    items: list[Any] = [1]
    items.append({"me": items})
    got = carried(items, tmp_path)
    assert got[1]["me"] is got


def test_a_tuple_in_a_circle_is_carried(tmp_path: Path) -> None:
    items: list[Any] = []
    circle = (items, 2, 3, 4)
    items.append(circle)
    write_checkpoint(open_checkpoint(saved(circle, tmp_path / "old.pt")).root, tmp_path / "new.pt")
    got = torch.load(tmp_path / "new.pt", **UNSAFE)
    assert got[0][0] is got


def test_ints_of_more_than_255_bytes_are_carried_for_torchs_ordinary_reader(tmp_path: Path) -> None:
    value = [7**999, -(7**999)]
    write_checkpoint(open_checkpoint(saved(value, tmp_path / "old.pt")).root, tmp_path / "new.pt")
    assert torch.load(tmp_path / "new.pt", **UNSAFE) == value


def test_the_deepest_nesting_that_is_read_is_written(tmp_path: Path) -> None:
    value: Any = "core"
    for _ in range(99):
        value = {"a": [value]}
    assert same(carried(value, tmp_path), value)


def test_the_same_tree_makes_the_same_file(tmp_path: Path) -> None:
    root = open_checkpoint(saved({"a": torch.ones(3), "b": {1, 2, 3}}, tmp_path / "old.pt")).root
    write_checkpoint(root, tmp_path / "a.pt")
    write_checkpoint(root, tmp_path / "b.pt")
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()


def test_what_was_written_is_read_again_as_it_was(tmp_path: Path) -> None:
    first = carried({"a": torch.arange(6.0)[2:], "b": with_metadata()}, tmp_path)
    (tmp_path / "new.pt").rename(tmp_path / "old2.pt")
    write_checkpoint(open_checkpoint(tmp_path / "old2.pt").root, tmp_path / "new.pt")
    assert same(torch.load(tmp_path / "new.pt", **OPTIONS), first)
    assert (tmp_path / "new.pt").read_bytes() == (tmp_path / "old2.pt").read_bytes()
