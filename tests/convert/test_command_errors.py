"""What the command refuses, and what its errors say: what happened, where, and what to do next."""

from __future__ import annotations

import argparse
import errno
import os
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch

from amp_migrate.convert.command.said import said

from .commands import Run, Touches, amp_state, names, old, read, read_all, run
from .made_files import PROTO, plain_pickle, text

__all__ = ["run"]


# foreign objects


def test_what_would_be_executed_is_refused_by_name_and_place(tmp_path: Path, run: Run) -> None:
    source = old(tmp_path / "old.pt", hook={"here": Touches(tmp_path / "canary")})
    ran = run(source)
    assert ran.code == 2 and ran.out == ""
    assert "posix.mkdir at hook.here" in ran.err and "--drop-unknown" in ran.err and "--trust" in ran.err
    assert names(tmp_path) == ["old.pt"]


def test_drop_unknown_leaves_it_out_and_says_so(tmp_path: Path, run: Run) -> None:
    ran = run(old(tmp_path / "old.pt", hook={"here": Touches(tmp_path / "canary")}), "--drop-unknown")
    assert ran.code == 0
    assert "lost     hook.here" in ran.out
    assert read(tmp_path / "old.native.pt")["hook"] == {}
    assert not (tmp_path / "canary").exists()


def test_trust_executes_and_says_so(tmp_path: Path, run: Run) -> None:
    class_in_this_package = argparse.ArgumentError(None, "x")
    ran = run(old(tmp_path / "old.pt", hook=class_in_this_package), "--trust")
    assert ran.code == 0 and "executed" in ran.out
    assert isinstance(read_all(tmp_path / "old.native.pt")["hook"], argparse.ArgumentError)


def test_drop_unknown_and_trust_exclude_each_other(tmp_path: Path, run: Run) -> None:
    assert run(old(tmp_path / "old.pt"), "--trust", "--drop-unknown").code == 2
    assert names(tmp_path) == ["old.pt"]


# errors: what, where, and what next


def _cut(path: Path) -> Path:
    old(path)
    os.truncate(path, 400)
    return path


def _corrupt(path: Path) -> Path:
    data = bytearray(old(path).read_bytes())
    start = data.index(b"unskipped")
    data[start : start + 9] = b"\xff" * 9
    path.write_bytes(data)
    return path


def _holds(content: bytes) -> Any:
    def make(path: Path) -> Path:
        path.write_bytes(content)
        return path

    return make


BROKEN = {
    "empty": (_holds(b""), "empty file; the run that wrote it stopped early"),
    "text": (_holds(b"hello, this is text\n"), "a text file"),
    "a web page": (_holds(b"<!DOCTYPE html><html>"), "the download got an error page"),
    "truncated": (_cut, "copy or download it again"),
    "corrupt": (_corrupt, "copy the file again"),
    "zeros": (_holds(bytes(1000)), "it was cut off while it was written"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_an_error_that_says_what_to_do(tmp_path: Path, run: Run, kind: str) -> None:
    make, words = BROKEN[kind]
    source = make(tmp_path / "bad.pt")
    ran = run(source, tmp_path / "new.pt")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"{source}: ") and words in ran.err
    assert "Traceback" not in ran.err
    assert names(tmp_path) == ["bad.pt"]


def test_the_other_files_are_done_when_one_is_broken(tmp_path: Path, run: Run) -> None:
    ran = run(old(tmp_path / "a.pt"), _cut(tmp_path / "b.pt"), old(tmp_path / "c.pt"))
    assert ran.code == 2
    assert "2 converted, 1 failed" in ran.out
    assert "b.pt" in ran.err and "a.pt" not in ran.err
    assert (tmp_path / "a.native.pt").exists() and (tmp_path / "c.native.pt").exists()


def test_missing_files_and_dangling_links_are_named(tmp_path: Path, run: Run) -> None:
    ran = run(tmp_path / "none.pt")
    assert ran.code == 2 and f"{tmp_path / 'none.pt'}: no such file or folder" in ran.err
    (tmp_path / "last.pt").symlink_to("gone.pt")
    ran = run(tmp_path / "last.pt")
    assert ran.code == 2 and "a symbolic link to gone.pt, which isn't there" in ran.err


def test_a_target_that_exists_is_not_overwritten(tmp_path: Path, run: Run) -> None:
    source, target = old(tmp_path / "old.pt"), tmp_path / "new.pt"
    target.write_text("mine")
    for arguments in ((source, target), (source, "--output", target)):
        ran = run(*arguments)
        assert ran.code == 2
        assert f"{target} exists, and is not overwritten: delete it, or name another" in ran.err
    (tmp_path / "old.native.pt").write_text("mine")
    ran = run(source)
    assert ran.code == 2 and "old.native.pt: exists already" in ran.err and "--output" in ran.err
    assert target.read_text() == (tmp_path / "old.native.pt").read_text() == "mine"


def test_a_target_in_a_missing_folder_is_an_error(tmp_path: Path, run: Run) -> None:
    ran = run(old(tmp_path / "old.pt"), tmp_path / "typo" / "new.pt")
    assert ran.code == 2 and f"{tmp_path / 'typo'}: no such folder; make it first" in ran.err
    assert names(tmp_path) == ["old.pt"]


def test_too_little_space_is_noticed_before_anything_is_written(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10, 10, 0))
    ran = run(old(tmp_path / "old.pt"))
    assert ran.code == 2 and f"{tmp_path} has 0.0 GB left" in ran.err
    assert names(tmp_path) == ["old.pt"]


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
from amp_migrate.convert.command.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_disk_that_ends_in_the_middle_leaves_nothing_half(tmp_path: Path, python: Any) -> None:
    source = old(tmp_path / "old.pt", big=torch.zeros(100_000))
    before = source.read_bytes()
    for arguments in ([str(source)], [str(source), "--in-place"]):
        ran = python("-c", LIMITED, *arguments)
        assert ran.returncode == 2, ran.stderr
        assert f"{tmp_path}: no file may be that big there" in ran.stderr
        assert names(tmp_path) == ["old.pt"]
        assert source.read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no permissions of that kind")
def test_a_folder_that_cannot_be_written_to_is_said_with_its_name(tmp_path: Path, run: Run) -> None:
    source = old(tmp_path / "old.pt")
    if os.geteuid() == 0:
        error = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / ".old.xyz.amp_migrate.tmp"))
        assert said(error, source) == f"{tmp_path}: nothing may be written there; name another place with --output"
        return
    tmp_path.chmod(0o500)
    try:
        ran = run(source)
    finally:
        tmp_path.chmod(0o700)
    assert ran.code == 2 and f"{tmp_path}: nothing may be written there" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--in-place", "a.pt", "--output", "b.pt"],
        ["--jobs", "0", "a.pt"],
        ["--jobs", "many", "a.pt"],
        ["--to", "jax", "a.pt"],
        ["--inspect", "a.pt", "--in-place"],
        ["--accumulation-steps", "0", "a.pt"],
        ["--dry", "a.pt"],
    ],
)
def test_wrong_usage_exits_with_2_and_no_traceback(run: Run, arguments: list[str]) -> None:
    ran = run(*arguments)
    assert ran.code == 2 and ran.out == ""
    assert "error: " in ran.err and "Traceback" not in ran.err and "_count" not in ran.err


def test_a_file_of_names_that_move_the_cursor_does_not(tmp_path: Path, run: Run) -> None:
    torch.save({"\x1b[2J\ud800": amp_state()}, tmp_path / "old.pt", pickle_protocol=2)
    for arguments in ((tmp_path / "old.pt",), ("--inspect", tmp_path / "old.pt")):
        ran = run(*arguments)
        assert ran.code == 0 and "\x1b" not in ran.out + ran.err and "x1b" in ran.out


def test_a_class_whose_name_moves_the_cursor_does_not(tmp_path: Path, run: Run) -> None:
    plain_pickle(tmp_path / "bad.pt", PROTO + text("\x1b[2Jmodule") + text("cls") + b"\x93.")
    for arguments in ((tmp_path / "bad.pt",), ("--inspect", tmp_path / "bad.pt")):
        ran = run(*arguments)
        assert "\x1b" not in ran.out + ran.err and "\\x1b[2Jmodule.cls" in ran.out + ran.err


class RaisesWhenBuilt:
    def __setstate__(self, state: Any) -> None:
        raise KeyError("gone")


def test_a_trusted_class_that_fails_is_an_error_that_names_the_failure(tmp_path: Path, run: Run) -> None:
    broken = RaisesWhenBuilt()
    vars(broken)["a"] = 1
    ran = run(old(tmp_path / "old.pt", hook=broken), "--trust")
    assert ran.code == 2 and "one of its classes raises KeyError: 'gone'" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["old.pt"]


def test_what_lost_an_entry_isnt_called_unchanged(tmp_path: Path, run: Run) -> None:
    torch.save({"epoch": 1, "hook": Touches(tmp_path / "canary")}, tmp_path / "old.pt")
    ran = run(tmp_path / "old.pt", "--drop-unknown")
    assert ran.code == 0 and "dropped" in ran.out and "unchanged" not in ran.out
