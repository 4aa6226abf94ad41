"""Which files are looked at."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from amp_migrate.rewrite.discover import Selection, find_files
from amp_migrate.rewrite.project import own_apex_module


def make(root: Path, *names: str) -> None:
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("from apex import amp\n")


def found(root: Path, selection: Selection = Selection()) -> list[str]:  # noqa: B008
    return [os.path.relpath(path, root).replace(os.sep, "/") for path in find_files([str(root)], selection).files]


def test_python_files_are_found_in_a_stable_order(tmp_path: Path) -> None:
    make(tmp_path, "b.py", "a.pyi", "c.pyw", "d.txt", "e", "sub/z.py", "sub/a.py", "a/x.py")
    assert found(tmp_path) == ["a.pyi", "b.py", "c.pyw", "a/x.py", "sub/a.py", "sub/z.py"]


def test_environments_and_build_results_are_left_out_and_counted(tmp_path: Path) -> None:
    folders = [".git", ".hg", ".svn", ".venv", "venv", ".tox", ".nox", "node_modules", "build", "dist"]
    folders += ["lib/site-packages", "__pycache__", ".eggs", "env"]
    make(tmp_path, "a.py", "environment/a.py", *(f"{folder}/deep/x.py" for folder in folders))
    (tmp_path / "env" / "pyvenv.cfg").touch()
    result = find_files([str(tmp_path)])
    assert [os.path.relpath(path, tmp_path) for path in result.files] == ["a.py", "environment/a.py"]
    assert result.folders_left_out == len(folders) - 4  # .git and the like are nobody's sources


def test_a_folder_called_env_is_only_left_out_if_it_is_an_environment(tmp_path: Path) -> None:
    make(tmp_path, "env/a.py")
    assert found(tmp_path) == ["env/a.py"]


def test_files_and_folders_named_explicitly_are_always_looked_at(tmp_path: Path) -> None:
    make(tmp_path, "venv/x.py", "gen.py", "script", "out/y.py")
    (tmp_path / ".gitignore").write_text("gen.py\nout/\n")
    assert found(tmp_path) == []
    paths = [str(tmp_path / name) for name in ("venv/x.py", "gen.py", "script", "out")]
    assert find_files(paths).files == [*paths[:3], str(tmp_path / "out" / "y.py")]


GITIGNORE_FILES = ["a.py", "gen.py", "sub/gen.py", "sub/keep.py", "sub/deep/own.py", "sub/deep/x.py", "top/own.py"]
GITIGNORE_FILES += ["data/raw/x.py", "data/x.py", "we ird/[x].py", "we ird/y.py", "data2/x.py"]


def test_gitignore_holds_at_every_level_just_as_in_git(tmp_path: Path) -> None:
    make(tmp_path, *GITIGNORE_FILES)
    (tmp_path / ".gitignore").write_text("# generated\ngen.py\n/data/*\n!/data/raw\n/top/own.py\n")
    (tmp_path / "sub" / ".gitignore").write_text("!gen.py\nkeep.py\ndeep/own.py\n")
    (tmp_path / "we ird" / ".gitignore").write_text("\\[x].py\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".git" / "info" / "exclude").write_text("data2\n")
    git = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard", "-z", "*.py"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    expected = sorted(name for name in git.stdout.decode().split("\0") if name)
    assert sorted(found(tmp_path)) == expected
    assert 0 < len(expected) < len(GITIGNORE_FILES)
    # from below, the files above still hold
    assert sorted(found(tmp_path / "sub")) == [name[4:] for name in expected if name.startswith("sub/")]
    assert sorted(found(tmp_path, Selection(gitignore=False))) == sorted(GITIGNORE_FILES)


def test_an_ignored_folder_that_is_named_is_looked_at_by_its_own_rules(tmp_path: Path) -> None:
    make(tmp_path, "out/a.py", "out/gen.py")
    (tmp_path / ".gitignore").write_text("out/\n")
    (tmp_path / "out" / ".gitignore").write_text("gen.py\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert found(tmp_path) == []
    assert found(tmp_path / "out") == ["a.py"]


def test_exclude_and_include_take_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "src/a.py", "src/gen/b.py", "src/c_pb2.py", "src/train")
    monkeypatch.chdir(tmp_path)
    assert find_files(["src"], Selection(exclude=("gen/", "*_pb2.py"))).files == [os.path.join("src", "a.py")]
    assert find_files(["src"], Selection(exclude=("src/gen",))).files == ["src/a.py", "src/c_pb2.py"]
    assert find_files(["src"], Selection(include=("train",))).files == ["src/train"]
    assert find_files(["."], Selection(include=("src/g*/*.py",))).files == ["src/gen/b.py"]


def test_links_found_on_the_way_are_not_followed_but_named_ones_are(tmp_path: Path) -> None:
    make(tmp_path, "real/a.py")
    (tmp_path / "real" / "loop").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "link.py").symlink_to(tmp_path / "real" / "a.py")
    (tmp_path / "root").symlink_to(tmp_path / "real")
    assert found(tmp_path) == ["real/a.py"]
    link = str(tmp_path / "real" / "link.py")
    assert find_files([link]).files == [link]
    assert find_files([str(tmp_path / "root")]).files == [str(tmp_path / "root" / "a.py")]


def test_a_file_reached_by_two_paths_is_looked_at_once(tmp_path: Path) -> None:
    make(tmp_path, "a.py")
    assert len(find_files([str(tmp_path), str(tmp_path / "a.py"), str(tmp_path / "." / "a.py")]).files) == 1


def test_a_folder_called_x_py_is_a_folder(tmp_path: Path) -> None:
    make(tmp_path, "x.py/y.py")
    assert found(tmp_path) == ["x.py/y.py"]
    assert find_files([str(tmp_path / "x.py")]).problems == []


def test_what_cannot_be_looked_at_is_named(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.py"
    os.mkfifo(pipe)
    result = find_files([str(tmp_path / "none.py"), str(pipe), str(tmp_path / "a.ipynb")])
    assert [reason for _, reason in result.problems] == ["no such file or folder", "not a regular file"] + [
        "no such file or folder"
    ]
    assert found(tmp_path) == []


def test_a_project_module_called_apex_is_seen_beside_the_file_and_in_the_roots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "scripts/apex.py", "pkg/apex.py", "pkg/__init__.py", "src/apex/__init__.py", "clone/apex/setup.py")
    monkeypatch.chdir(tmp_path)
    assert own_apex_module("scripts", []) == os.path.join("scripts", "apex.py")
    assert own_apex_module("other", ["src"]) == os.path.join("src", "apex", "__init__.py")
    assert own_apex_module("pkg", ["."]) == ""  # it is pkg.apex
    assert own_apex_module("clone", []) == ""  # a folder without __init__.py loses to an installed package
    make(tmp_path, "apex.py")
    assert own_apex_module("pkg", []) == "apex.py"
