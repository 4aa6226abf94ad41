"""Files made to hurt whoever opens them: nothing of them is executed, and each is refused, by name, soon."""

from __future__ import annotations

import contextlib
import pickle
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Callable

import pytest

from amp_migrate.convert.errors import CannotConvert, Damaged, Unsafe
from amp_migrate.convert.file import check_file
from amp_migrate.convert.foreign import drop_foreign, refuse_foreign
from amp_migrate.convert.opening import MAX_DEPTH, limits, open_checkpoint

from .made_files import FORMATS, PROTO, legacy_file, named, number, plain_pickle, storage_id, tensor, text, torch_zip

SECONDS = 5
MEGABYTES = 64


def refusal(path: Path) -> str:
    """Open a file as a conversion does, and return why it is refused, in bounded time and memory."""
    tracemalloc.start()
    start = time.perf_counter()
    try:
        with pytest.raises(CannotConvert) as caught:
            check_file(path)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert time.perf_counter() - start < SECONDS
    assert peak < MEGABYTES << 20
    return str(caught.value)


SHELL = named("posix", "system")
EVAL = named("builtins", "eval")
MAP = named("builtins", "map")


def command(canary: Path) -> bytes:
    return text(f"touch {canary}")


def code(canary: Path) -> bytes:
    return text(f"open({str(canary)!r}, 'w')")


#: operations that would call something, by the way they do; ``{code}`` would make the file ``canary``
CALLS: dict[str, tuple[str, Callable[[Path], bytes]]] = {
    "reduce": ("posix.system", lambda canary: SHELL + command(canary) + b"\x85R"),
    "reduce of a name on the stack": (
        "posix.system",
        lambda canary: text("posix") + text("system") + b"\x93" + command(canary) + b"\x85R",
    ),
    "reduce in Python 2's names": (
        "builtins.eval",
        lambda canary: named("__builtin__", "eval") + code(canary) + b"\x85R",
    ),
    "inst": ("builtins.eval", lambda canary: b"(" + code(canary) + b"ibuiltins\neval\n"),
    "inst of a shell": ("posix.system", lambda canary: b"(" + command(canary) + b"iposix\nsystem\n"),
    "obj": ("builtins.eval", lambda canary: b"(" + EVAL + code(canary) + b"o"),
    "newobj": (
        "builtins.map",
        lambda canary: named("builtins", "bytes") + MAP + EVAL + b"]" + code(canary) + b"a\x86\x81\x85\x81",
    ),
    "newobj_ex": (
        "builtins.map",
        lambda canary: named("builtins", "bytes") + MAP + EVAL + b"]" + code(canary) + b"a\x86}\x92\x85}\x92",
    ),
    "newobj by copyreg": (
        "subprocess.Popen",
        lambda canary: named("copyreg", "__newobj__") + named("subprocess", "Popen") + command(canary) + b"\x86R",
    ),
    "reconstructor": (
        "os._wrap_close",
        lambda canary: (
            named("copyreg", "_reconstructor") + named("os", "_wrap_close") + named("builtins", "object") + b"N\x87R"
        ),
    ),
    "reconstructor with an odd base": (
        "posix.system",
        lambda canary: named("copyreg", "_reconstructor") + named("a", "B") + SHELL + command(canary) + b"\x87R",
    ),
    "build through setstate": (
        "code.InteractiveInterpreter",
        lambda canary: (
            named("code", "InteractiveInterpreter") + b")\x81" + b"}" + text("runsource") + code(canary) + b"sb"
        ),
    ),
    "build with slots": ("a.B", lambda canary: named("a", "B") + b")\x81" + b"N}" + text("x") + SHELL + b"s\x86b"),
    "a call in the arguments of a harmless one": (
        "posix.system",
        lambda canary: named("collections", "OrderedDict") + b"]](N" + SHELL + command(canary) + b"\x85Rea\x85R",
    ),
    "a call in a key": ("posix.system", lambda canary: b"}" + SHELL + command(canary) + b"\x85R" + b"Ns"),
    "a call in a set": ("posix.system", lambda canary: b"\x8f(" + SHELL + command(canary) + b"\x85R" + b"\x90"),
    "a call in an OrderedDict's attributes": (
        "posix.system",
        lambda canary: (
            named("collections", "OrderedDict") + b")R}" + text("_metadata") + SHELL + command(canary) + b"\x85Rsb"
        ),
    ),
    "a call in a Namespace": (
        "posix.system",
        lambda canary: named("argparse", "Namespace") + b")\x81}" + text("hook") + SHELL + command(canary) + b"\x85Rsb",
    ),
    "the result of a call is called": (
        "builtins.getattr",
        lambda canary: (
            named("builtins", "getattr") + named("os", "path") + text("system") + b"\x86R" + command(canary) + b"\x85R"
        ),
    ),
    "a dotted name": (
        "os.path.os.system",
        lambda canary: text("os") + text("path.os.system") + b"\x93" + command(canary) + b"\x85R",
    ),
    "partial": (
        "functools.partial",
        lambda canary: named("functools", "partial") + SHELL + command(canary) + b"\x86R)R",
    ),
    "map": (
        "builtins.list",
        lambda canary: (
            named("builtins", "list") + named("builtins", "map") + EVAL + b"]" + code(canary) + b"a\x86R\x85R"
        ),
    ),
    "import": ("builtins.__import__", lambda canary: named("builtins", "__import__") + text("antigravity") + b"\x85R"),
    "torch.hub": ("torch.hub.load", lambda canary: named("torch.hub", "load") + command(canary) + b"\x85R"),
    "torch.load of another file": (
        "torch.serialization.load",
        lambda canary: named("torch.serialization", "load") + text("/tmp/other.pt") + b"\x85R",
    ),
    "torch's own import": (
        "torch._utils._import_dotted_name",
        lambda canary: named("torch._utils", "_import_dotted_name") + text("os.system") + b"\x85R",
    ),
    "numpy's own load": ("numpy.load", lambda canary: named("numpy", "load") + command(canary) + b"\x85R"),
    "a type made by the file": (
        "builtins.type",
        lambda canary: named("builtins", "type") + text("T") + b")}" + text("__del__") + EVAL + b"s\x87R",
    ),
    "a tensor's backward hook": (
        "torch._utils._rebuild_parameter",
        lambda canary: named("torch._utils", "_rebuild_parameter") + b"N\x88}" + number(0) + SHELL + b"s\x87R",
    ),
    "a tensor subclass": (
        "evil.Tensor",
        lambda canary: (
            named("torch._tensor", "_rebuild_from_type_v2")
            + b"("
            + named("torch._utils", "_rebuild_tensor_v2")
            + named("evil", "Tensor")
            + b")}tR"
        ),
    ),
    "a call whose result is thrown away": (
        "posix.system",
        lambda canary: SHELL + command(canary) + b"\x85R0" + b"}",
    ),
    "a call thrown away with its mark": (
        "posix.system",
        lambda canary: b"(" + SHELL + command(canary) + b"\x85R1" + b"}",
    ),
    "a call that is only remembered": (
        "posix.system",
        lambda canary: SHELL + command(canary) + b"\x85Rq\x050" + b"}",
    ),
    "a call that another value takes the place of": (
        "posix.system",
        lambda canary: b"}" + text("a") + SHELL + command(canary) + b"\x85Rs" + text("a") + b"Ns",
    ),
    "a function alone": ("posix.system", lambda canary: b"]" + SHELL + b"a"),
    "a default factory": (
        "posix.system",
        lambda canary: named("collections", "defaultdict") + SHELL + b"\x85R" + text("a") + b"Ns",
    ),
    "an encoding": ("latin1", lambda canary: named("_codecs", "encode") + text("abc") + text("rot13") + b"\x86R"),
    "an encoding from the file": ("latin1", lambda canary: named("_codecs", "encode") + text("abc") + SHELL + b"\x86R"),
    "extension code 1": ("extension code 7", lambda canary: b"\x82\x07" + command(canary) + b"\x85R"),
    "extension code 2": ("extension code 775", lambda canary: b"\x83\x07\x03" + command(canary) + b"\x85R"),
    "extension code 4": ("extension code 7", lambda canary: b"\x84\x07\0\0\0" + command(canary) + b"\x85R"),
    "persistent id": ("storage|persistent id", lambda canary: command(canary) + b"Q"),
    "persistent id in text": ("storage|persistent id", lambda canary: b"Pposix.system\n"),
    "persistent id of another kind": (
        "isn't a storage|persistent id",
        lambda canary: text("sys") + SHELL + b"\x86Q",
    ),
    "persistent id with a foreign class": (
        "posix.system|persistent id|isn't a storage",
        lambda canary: b"(" + text("storage") + SHELL + text("0") + text("cpu") + number(4) + b"tQ",
    ),
    "a buffer from outside": ("buffer", lambda canary: b"\x97"),
}


@pytest.mark.parametrize("made", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("name, body", CALLS.values(), ids=CALLS)
def test_what_a_file_wants_executed_is_refused_by_name(
    name: str, body: Callable[[Path], bytes], made: Callable[[Path, bytes], Path], tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    pickled = PROTO + b"}" + text("model") + body(canary) + b"s."
    path = made(tmp_path / "hostile.pt", pickled)
    said = refusal(path)
    assert any(each in said for each in name.split("|")), said
    assert not canary.exists()


@pytest.mark.parametrize("kind", ["reduce", "inst", "obj", "newobj", "newobj_ex", "map"])
def test_python_itself_would_have_executed_it(kind: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    with contextlib.suppress(TypeError):  # what eval returns makes no bytes
        pickle.loads(PROTO + CALLS[kind][1](canary) + b".")
    assert canary.exists()


def test_the_place_of_each_foreign_object_is_said(tmp_path: Path) -> None:
    bad = named("evil", "Hook") + b")R"
    body = b"}" + text("args") + named("argparse", "Namespace") + b")\x81}" + text("hook") + bad + b"sbs"
    body += text("optimizer") + b"}" + text("state") + b"]" + bad + b"a" + b"s" + b"s"
    opened = open_checkpoint(torch_zip(tmp_path / "a.pt", PROTO + body + b"."))
    assert opened.foreign == {"evil.Hook": ("args.hook", "optimizer.state[0]")}
    with pytest.raises(Unsafe, match=r"evil.Hook at args.hook, optimizer.state\[0\](.|\n)*--drop-unknown"):
        refuse_foreign(opened.root)


def test_foreign_entries_are_dropped_by_key_with_a_note_each(tmp_path: Path) -> None:
    bad = named("evil", "Hook") + b")R"
    body = (
        b"}("
        + text("a")
        + bad
        + text("b")
        + b"]"
        + bad
        + b"a"
        + text("c")
        + bad
        + b"K\x01\x86"
        + text("d")
        + b"N"
        + b"u"
    )
    opened = open_checkpoint(torch_zip(tmp_path / "a.pt", PROTO + body + b"."))
    assert drop_foreign(opened.root, opened.report) == {"b": [], "c": (None, 1), "d": None}
    assert sorted(note.place for note in opened.report.notes) == ["a", "b[0]", "c[0]"]
    refuse_foreign(opened.root)


def test_foreign_keys_members_and_arguments_are_dropped_with_what_holds_them(tmp_path: Path) -> None:
    bad = named("evil", "Hook") + b")R"
    tagged = named("torch._tensor", "_rebuild_from_type_v2") + b"(" + bad + b"tR"
    body = b"}(" + bad + b"N" + text("s") + b"\x8f(" + bad + b"K\x01" + bad + b"\x85\x90" + text("t") + tagged + b"u"
    opened = open_checkpoint(torch_zip(tmp_path / "a.pt", PROTO + body + b"."))
    assert drop_foreign(opened.root, opened.report) == {"s": {1, (None,)}}
    assert len(opened.report.notes) == 4
    refuse_foreign(opened.root)


def test_a_file_that_is_foreign_as_a_whole_cannot_be_dropped(tmp_path: Path) -> None:
    opened = open_checkpoint(torch_zip(tmp_path / "a.pt", PROTO + named("evil", "Model") + b")R."))
    with pytest.raises(Unsafe, match="the whole file is a evil.Model"):
        drop_foreign(opened.root, opened.report)


def test_foreign_objects_are_found_and_dropped_in_the_deepest_place(tmp_path: Path) -> None:
    bag = named("argparse", "Namespace") + b")\x81}" + text("hook") + named("evil", "Hook") + b")Rsb"
    body = b"]" * (MAX_DEPTH - 3) + bag + b"a" * (MAX_DEPTH - 3)
    opened = open_checkpoint(torch_zip(tmp_path / "a.pt", PROTO + body + b"."))
    assert opened.foreign == {"evil.Hook": ("[0]" * (MAX_DEPTH - 3) + ".hook",)}
    drop_foreign(opened.root, opened.report)
    refuse_foreign(opened.root)


def doubling(levels: int) -> bytes:
    """A list of two of the same list, of two of the same, …: a thousand bytes, 2**levels ways through it."""
    body = b"]q\x00"
    for level in range(levels):
        body += b"0]" + b"h" + bytes([level]) + b"a" + b"h" + bytes([level]) + b"a" + b"q" + bytes([level + 1])
    return body


def test_exponential_sharing_costs_nothing(tmp_path: Path) -> None:
    body = PROTO + b"}" + text("a") + doubling(100) + b"s" + text("b") + named("evil", "Hook") + b")Rs."
    assert "evil.Hook at b" in refusal(torch_zip(tmp_path / "a.pt", body))
    opened = open_checkpoint(torch_zip(tmp_path / "a.pt", body))
    assert list(drop_foreign(opened.root, opened.report)) == ["a"]


def tuples(levels: int) -> bytes:
    body = b")q\x00"
    for level in range(levels):
        body += b"0h" + bytes([level]) + b"h" + bytes([level]) + b"\x86q" + bytes([level + 1])
    return body


#: all multiples of it have the hash 0
COLLIDE = (1 << 61) - 1
#: pickles that are broken, or ask for too much: what is said about them
BROKEN: dict[str, tuple[str, bytes]] = {
    "a key whose hash takes forever": ("key has more than", b"}" + tuples(60) + b"Ns"),
    "a member whose hash takes forever": ("key has more than", b"\x8f(" + tuples(60) + b"\x90"),
    "keys that collide": (
        "made to collide",
        b"}(" + b"".join(b"\x8a\x0d" + (n * COLLIDE).to_bytes(13, "little") + b"N" for n in range(1, 12000)) + b"u",
    ),
    "an unhashable key": ("used as a key", b"}]Ns"),
    "deep nesting by marks": ("deep", b"(" * 20_000 + b"t" * 20_000),
    "deep nesting of lists": ("deep", b"]" * 20_000 + b"a" * 19_999),
    "deep nesting of tuples": ("deep", b")" + b"\x85" * 20_000),
    "deep nesting by the memo": (
        "deep",
        b"]\x94" + b"".join(b"0]j" + struct.pack("<I", n) + b"a\x94" for n in range(5000)),
    ),
    "a huge string": ("follow", b"X\xff\xff\xff\xff" + b"a"),
    "a huge string of 64 bits": ("follow", b"\x8d" + b"\xff" * 7 + b"\x7f" + b"a"),
    "a string of negative length": ("length is -1", b"T\xff\xff\xff\xff"),
    "huge bytes": ("follow", b"\x8e" + b"\xff" * 7 + b"\x7f"),
    "a huge bytearray": ("follow", b"\x96" + b"\xff" * 7 + b"\x7f"),
    "a huge frame": ("frame", b"\x95" + b"\xff" * 8),
    "a huge int": ("an int has", b"\x8b" + struct.pack("<i", 100_000) + b"\x01" * 100_000),
    "a huge int in text": ("an int has", b"L" + b"9" * 1_000_000 + b"L\n"),
    "a negative int length": ("length is", b"\x8b" + struct.pack("<i", -5)),
    "a memo index of four billion": ("no operation|stops", b"Nr\xff\xff\xff\xff" + b"\xff"),
    "a memo entry that isn't there": ("object number 5", b"h\x05"),
    "a line without end": ("line without end", b"S'abc"),
    "a string without quotes": ("quotes", b"Sabc\n"),
    "an unknown operation": ("no operation", b"\xf0"),
    "protocol 9": ("protocol 9", b"\x80\x09N"),
    "an empty stack": ("stack", b"0"),
    "no mark": ("stack", b"u"),
    "a tuple of what isn't there": ("stack", b"\x87"),
    "an odd dictionary": ("without a value", b"}(Nu"),
    "appending to a tuple": ("appends to a tuple", b")Na"),
    "a key of a list": ("sets a key of a list", b"]NNs"),
    "members of a list": ("adds members", b"](N\x90"),
    "the attributes of a list": ("sets attributes", b"]}b"),
    "an OrderedDict that has no items() any more": (
        "is taken",
        named("collections", "OrderedDict") + b")R}" + text("items") + b"Nsb",
    ),
    "a class with an endless name": ("longer than", b"c" + b"a" * 100_000 + b"\nb\n"),
    "a class without a name": ("no names", b"NN\x93"),
    "a call of a number": ("calls a int", b"K\x01)R"),
    "a call without arguments": ("arguments of a call", named("a", "b") + b"NR"),
    "too many objects in the middle": ("stops in the middle", b"NN"),
    "a state set twice": ("twice", named("a", "B") + b")\x81}b}b"),
}


@pytest.mark.parametrize("made", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("said, body", BROKEN.values(), ids=BROKEN)
def test_what_is_broken_or_takes_too_much_is_refused(
    said: str, body: bytes, made: Callable[[Path, bytes], Path], tmp_path: Path
) -> None:
    reason = refusal(made(tmp_path / "hostile.pt", PROTO + body + b"."))
    assert any(each in reason for each in said.split("|")), reason


@pytest.mark.parametrize("body", [b"}" * 10_000, b"N" * 100_000, b"N\x85" * 20_000, b"]\x94" * 10_000])
def test_a_small_file_cannot_take_much_memory(body: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_MEMORY", 4 << 20)
    assert "of memory without its tensors" in refusal(plain_pickle(tmp_path / "a.pt", PROTO + body + b"."))


GOOD = tensor(storage_id())
BYTES = {"data/0": bytes(16)}
#: tensors that aren't where they say
BAD_TENSORS: dict[str, tuple[str, bytes]] = {
    "beyond the storage": ("reaches to element 4", tensor(storage_id(), 1)),
    "beyond it by strides": ("reaches to element", tensor(storage_id(), 0, (2, 2), (3, 1))),
    "by an overflow": ("reaches to element", tensor(storage_id(), 0, (1 << 30, 1 << 30), (1 << 30, 1 << 30))),
    "a negative size": ("something else than sizes", tensor(storage_id(), 0, (-1,))),
    "a negative stride": ("something else than sizes", tensor(storage_id(), 3, (2,), (-1,))),
    "a negative offset": ("begins at element -1", tensor(storage_id(), -1)),
    "sizes without strides": ("1 sizes and 2 strides", tensor(storage_id(), 0, (2,), (1, 1))),
    "a hundred dimensions": ("a tensor's shape is", tensor(storage_id(), 0, (1,) * 100, (1,) * 100)),
    "no storage": ("instead of a storage", tensor(b"N")),
    "a storage of nobody's class": ("which torch doesn't have", tensor(storage_id(cls="EvilStorage"))),
    "a storage that isn't there": ("missing", tensor(storage_id("1"))),
    "a storage that is too short": ("its tensors need 400", tensor(storage_id(numel=100))),
    "a storage of negative size": ("has -4 elements", tensor(storage_id(numel=-4))),
    "a storage outside of the folder": ("missing", tensor(storage_id("../../etc/passwd"))),
}


@pytest.mark.parametrize("said, body", BAD_TENSORS.values(), ids=BAD_TENSORS)
def test_a_tensor_outside_of_its_storage_is_refused(said: str, body: bytes, tmp_path: Path) -> None:
    assert said in refusal(torch_zip(tmp_path / "a.pt", PROTO + body + b".", BYTES))


def test_the_good_tensor_beside_these_opens(tmp_path: Path) -> None:
    opened = open_checkpoint(torch_zip(tmp_path / "a.pt", PROTO + GOOD + b".", BYTES))
    assert (opened.root.shape, opened.root.storage.source.length) == ((4,), 16)


LEGACY = PROTO + tensor(storage_id(legacy=True)) + b"."


@pytest.mark.parametrize("cut", [1, 17, 24, 40])
def test_a_legacy_file_that_was_cut_off_says_so(cut: int, tmp_path: Path) -> None:
    path = legacy_file(tmp_path / "a.pt", LEGACY, {"0": bytes(16)})
    assert open_checkpoint(path).root.storage.source.length == 16
    path.write_bytes(path.read_bytes()[:-cut])
    assert "cut off" in refusal(path) or "left" in refusal(path)


@pytest.mark.parametrize(
    "storages, said",
    [
        ({}, "lists 0 storages"),
        ({"1": bytes(16)}, "lists 1 storages"),
        ({"0": bytes(16), "1": bytes(16)}, "lists 2 storages"),
        ({"0": bytes(12)}, "has 3 elements; its tensors say 4"),
        ({"0": bytes(20)}, "has 5 elements; its tensors say 4"),
    ],
)
def test_a_legacy_file_whose_storages_arent_its_tensors_is_refused(
    storages: dict[str, bytes], said: str, tmp_path: Path
) -> None:
    assert said in refusal(legacy_file(tmp_path / "a.pt", LEGACY, storages))


def test_what_follows_a_checkpoint_is_refused(tmp_path: Path) -> None:
    path = legacy_file(tmp_path / "a.pt", LEGACY, {"0": bytes(16)})
    path.write_bytes(path.read_bytes() + pickle.dumps(1))
    assert "goes on for" in refusal(path)


def test_a_file_in_a_file_in_a_file_is_refused(tmp_path: Path) -> None:
    def load(data: bytes) -> bytes:
        return named("torch.storage", "_load_from_bytes") + b"B" + struct.pack("<I", len(data)) + data + b"\x85R"

    inner = legacy_file(tmp_path / "inner", PROTO + load(b"x") + b".").read_bytes()
    assert "yet another" in refusal(plain_pickle(tmp_path / "a.pkl", PROTO + load(inner) + b"."))


def test_files_in_a_file_take_from_one_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_MEMORY", 4 << 20)

    def load(data: bytes) -> bytes:
        return named("torch.storage", "_load_from_bytes") + b"B" + struct.pack("<I", len(data)) + data + b"\x85R"

    inner = legacy_file(tmp_path / "inner", PROTO + b"(" + b"}" * 1000 + b"l.").read_bytes()
    assert len(open_checkpoint(plain_pickle(tmp_path / "a.pkl", PROTO + load(inner) + b".")).root) == 1000
    bombs = PROTO + b"(" + load(inner) * 10 + b"l."
    assert "of memory without its tensors" in refusal(plain_pickle(tmp_path / "b.pkl", bombs))


def test_errors_name_the_file_and_the_byte(tmp_path: Path) -> None:
    path = plain_pickle(tmp_path / "a.pkl", PROTO + b"N\xf0.")
    with pytest.raises(Damaged, match=r"a\.pkl.*byte 4"):
        open_checkpoint(path)
