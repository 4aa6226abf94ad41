"""Settings in ``pyproject.toml``, and what a project's metadata says about torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from commands import OLD, make_project

from amp_migrate.codemods.findings import Level
from amp_migrate.rewrite import Outcome, Result, Settings, session
from amp_migrate.rewrite import toml_file as toml
from amp_migrate.rewrite.choice import chosen_rules, unknown_codes
from amp_migrate.rewrite.cli import main
from amp_migrate.rewrite.options import OPTIONS, Options, Takes
from amp_migrate.rewrite.settings_file import SettingsError, read_settings, settings_file
from amp_migrate.rewrite.torch_pins import notes_on_torch


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, *lines: str, name: str = "pyproject.toml") -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def read(folder: Path, *lines: str) -> dict[str, object]:
    return read_settings(str(write(folder, "[tool.amp_migrate]", *lines)))


EVERY_KEY = {
    'to = "shim"': ("to", "shim"),
    'level = "review"': ("level", Level.REVIEW),
    'torch = "1.10"': ("torch", (1, 10)),
    'device-type = "xpu"': ("device_type", "xpu"),
    'dtype = "bfloat16"': ("dtype", "bfloat16"),
    'format = "github"': ("format", "github"),
    'select = ["AMP001", "amp1,AMP2"]': ("select", ("AMP001", "AMP1", "AMP2")),
    "ignore = []": ("ignore", ()),
    'exclude = ["old/**", "x,y"]': ("exclude", ("old/**", "x,y")),
    'include = ["*.txt"]': ("include", ("*.txt",)),
    "jobs = 3": ("jobs", 3),
    "diff = true": ("diff", True),
    "check = true": ("check", True),
    "strict = true": ("strict", True),
    "autocast-eval = true": ("autocast_eval", True),
    "keep-old-checkpoints = true": ("keep_old_checkpoints", True),
    "guard-scheduler = false": ("guard_scheduler", False),
    "no-gitignore = true": ("no_gitignore", True),
}


@pytest.mark.parametrize("line", EVERY_KEY)
def test_a_key_is_a_long_option_and_has_its_value(tmp_path: Path, line: str) -> None:
    assert read(tmp_path, line) == dict([EVERY_KEY[line]])


def test_every_option_but_those_of_a_single_run_can_be_set() -> None:
    assert {name for name, _ in EVERY_KEY.values()} == {option.field for option in OPTIONS if option.in_file}
    assert {option.name for option in OPTIONS if not option.in_file} == {"force", "output", "stdin-filename"}
    assert {option.field for option in OPTIONS} == set(Options.__dataclass_fields__) - {"paths"}


WRONG = {
    'colour = "red"': "colour: is unknown; there are autocast-eval, check,",
    "device_type = 'cuda'": "device_type: is unknown; write device-type",
    "force = true": "force: can't be set here, only on the command line (--force)",
    "list-rules = true": "list-rules: can't be set here",
    "torch = 2.10": "torch: must be a string, not 2.1",
    'torch = "two"': "torch: 'two' isn't a version of the form X.Y",
    'strict = "yes"': "strict: must be true or false, not 'yes'",
    "jobs = true": "jobs: must be a whole number, not True",
    "jobs = 0": "jobs: '0' isn't a number of processes",
    'select = "AMP001"': "select: must be a list of strings, not 'AMP001'",
    "exclude = [1]": "exclude: must be a list of strings, not [1]",
    'to = "jax"': "to: 'jax' is unknown; use native or shim",
    'select = ["AMP999"]': "select: no rule's code begins with AMP999",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_setting_exits_2_and_names_file_and_key(
    project: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    write(project, "[tool.amp_migrate]", line)
    with pytest.raises(SystemExit) as caught:
        main(["src"])
    assert caught.value.code == 2
    assert f"error: pyproject.toml: [tool.amp_migrate] {WRONG[line]}" in capsys.readouterr().err
    assert (project / "src" / "train.py").read_bytes() == OLD


def test_what_is_no_toml_or_no_table_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"pyproject.toml: this isn't TOML: .*line 2"):
        read(tmp_path, "x = = 1")
    with pytest.raises(SettingsError, match=r"must be a table"):
        read_settings(str(write(tmp_path, "[tool]", "amp_migrate = 1")))
    with pytest.raises(SettingsError, match=r"\[tool.amp-migrate\] isn't read; call it \[tool.amp_migrate\]"):
        read_settings(str(write(tmp_path, "[tool.amp-migrate]")))
    assert read_settings(str(write(tmp_path, "not toml, and nothing about us"))) == {}


def test_the_nearest_file_above_the_first_path_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outer, inner = write(tmp_path, ""), write(tmp_path / "a" / "b", "")
    assert settings_file("a/b/c/missing.py") == os.path.relpath(inner)
    assert settings_file("a/b") == os.path.relpath(inner)
    assert settings_file("a") == settings_file(".") == os.path.relpath(outer)


def settings_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Settings:
    seen = []

    def noting(source: bytes, settings: Settings, *, own_apex: str) -> Result:
        seen.append(settings)
        return Result(Outcome.UNCHANGED, source)

    monkeypatch.setattr(session, "rewrite_source", noting)
    assert main(["src/train.py", *arguments]) == 0
    return seen[0]


def test_the_command_line_wins(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        project,
        "[tool.amp_migrate]",
        *('to = "shim"', 'torch = "2.0"', 'select = ["AMP001"]', "autocast-eval = true", "guard-scheduler = true"),
    )
    alone = settings_of(monkeypatch)
    assert (alone.target.to, alone.target.torch, alone.select) == ("shim", (2, 0), ("AMP001",))
    assert alone.target.autocast_eval
    both = settings_of(monkeypatch, "--to", "native", "--select", "AMP002", "--no-autocast-eval")
    assert (both.target.to, both.target.torch, both.select) == ("native", (2, 0), ("AMP002",))
    assert (both.target.autocast_eval, both.target.guard_scheduler) == (False, True)


@pytest.mark.parametrize("option", [each for each in OPTIONS if each.takes is Takes.FLAG and each.in_file])
def test_every_flag_of_the_file_can_be_taken_back(option: object) -> None:
    from amp_migrate.rewrite.command_line import build_parser
    from amp_migrate.rewrite.options import Option

    assert isinstance(option, Option)
    undo = f"--{option.name[3:]}" if option.name.startswith("no-") else f"--no-{option.name}"
    assert vars(build_parser().parse_args([undo])) == {option.field: False}


def test_python_before_3_11_reads_toml_with_tomli_and_says_so_if_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 8, 0))
    monkeypatch.setitem(sys.modules, "tomli", None)
    with pytest.raises(toml.TomlError, match=r"pip install tomli"):
        toml.parse_toml(b"")


def test_the_longer_of_select_and_ignore_decides() -> None:
    def codes(select: tuple[str, ...], ignore: tuple[str, ...]) -> set[str]:
        return {rule.code for rule in chosen_rules(select, ignore) if rule.code.startswith("AMP00")}

    everything = codes((), ())
    assert {"AMP001", "AMP002", "AMP003"} <= everything
    assert codes(("AMP001",), ()) == {"AMP001"}
    assert codes(("AMP00",), ()) == everything
    assert codes((), ("AMP001",)) == everything - {"AMP001"}
    assert codes((), ("AMP",)) == set()
    assert codes(("AMP001",), ("AMP",)) == {"AMP001"}
    assert codes(("AMP",), ("AMP001",)) == everything - {"AMP001"}
    assert codes(("AMP001",), ("AMP001",)) == set()
    assert unknown_codes(("AMP", "AMP001", "AMP999", "B")) == ["AMP999", "B"]


PINS = {
    "pyproject.toml: dependencies": ("pyproject.toml", '[project]\ndependencies = ["numpy", "torch>=1.6,<3"]', "1.6"),
    "pyproject.toml: extras": ("pyproject.toml", "[project.optional-dependencies]\ngpu = ['torch ~= 2.0']", "2.0"),
    "setup.cfg": ("setup.cfg", "[options]\ninstall_requires =\n    numpy\n    torch==1.13.*", "1.13"),
    "setup.cfg: extras": ("setup.cfg", "[options.extras_require]\ngpu = torch>1.9", "1.9"),
    "requirements": ("requirements.txt", "-r other.txt\nnumpy\ntorch==1.10.0+cu113  # old\n", "1.10"),
    "other requirements": ("requirements-dev.txt", "Torch<=1.12 ; python_version < '3.9'", "1.12"),
    "hashes": ("requirements.txt", "torch==1.13.1 \\\n  --hash=sha256:abc", "1.13"),
}


@pytest.mark.parametrize("name", PINS)
def test_a_lower_torch_in_the_metadata_is_named(tmp_path: Path, name: str) -> None:
    file, content, version = PINS[name]
    write(tmp_path, content, name=file)
    (note,) = notes_on_torch(str(tmp_path / "src" / "x.py"), (2, 3))
    assert file in note
    assert "needs torch 2.3 or newer" in note
    assert note.endswith(f"or run this with --torch {version}")
    assert notes_on_torch(str(tmp_path), tuple(map(int, version.split(".")))) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "line", ["torch", "torch>=2.3", "torch!=1.6", "torchvision==0.1", "# torch==1.6", "torch==", "-e torch==1.6", "\0"]
)
def test_what_allows_no_older_torch_by_name_gets_no_note(tmp_path: Path, line: str) -> None:
    write(tmp_path, line, name="requirements.txt")
    assert notes_on_torch(str(tmp_path), (2, 3)) == ()


@pytest.mark.parametrize("content", ["torch = = 1", "project = 'torch'", "[project]\ndependencies = 'torch'", "[x\n"])
def test_metadata_that_cannot_be_read_is_no_obstacle(tmp_path: Path, content: str) -> None:
    write(tmp_path, content)
    write(tmp_path, content, "torch", name="setup.cfg")
    assert notes_on_torch(str(tmp_path), (2, 3)) == ()


def test_the_report_has_the_note_and_the_setting_stays(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(project, "torch==1.10", name="requirements.txt")
    seen = []

    def changing(source: bytes, settings: Settings, *, own_apex: str) -> Result:
        seen.append(settings.target.torch)
        return Result(Outcome.CHANGED, b"import torch\n", {"AMP101": 1})

    monkeypatch.setattr(session, "rewrite_source", changing)
    main(["src/train.py", "--check"])
    assert "note: requirements.txt allows torch==1.10, but what is written here needs" in capsys.readouterr().out
    main(["src/train.py", "--check", "--torch", "1.10"])
    main(["src/train.py", "--check", "--to", "shim"])  # the drop-in runs on any torch
    assert "note:" not in capsys.readouterr().out
    assert seen == [(2, 3), (1, 10), (2, 3)]
