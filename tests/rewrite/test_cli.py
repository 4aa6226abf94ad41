"""The command: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import NEW, OLD, PYTHON_PATH, ROOT, command, git, make_project, snapshot

from amp_migrate.codemods.findings import Level
from amp_migrate.codemods.registry import all_rules
from amp_migrate.codemods.target import Target
from amp_migrate.rewrite import Outcome, Result, Settings
from amp_migrate.rewrite.cli import main

ALL_TARGET_OPTIONS = [
    *("--to", "shim", "--device-type", "xpu", "--dtype", "bfloat16", "--torch", "1.10", "--level", "review"),
    *("--autocast-eval", "--keep-old-checkpoints", "--guard-scheduler"),
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.fast
def test_a_project_is_rewritten_in_place_with_a_summary_and_a_second_run_does_nothing(project: Path) -> None:
    untouched = project / "src" / "other.py"
    os.utime(untouched, (1, 1))
    (project / "src" / "train.py").chmod(0o755)
    done = command("src", "--to", "shim", cwd=project)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (project / "src" / "train.py").read_bytes() == NEW
    assert (project / "src" / "train.py").stat().st_mode & 0o777 == 0o755
    assert (project / "src" / "model.py").read_bytes() == (
        b"from amp_migrate.apex import amp\r\nfrom apex import transformer\r\n"
    )
    assert untouched.stat().st_mtime == 1
    text = done.stdout.decode()
    assert "changed src/train.py  AMP001 ×1\n" in text
    assert "src/model.py:2:18 AMP002 `from apex import transformer` stays on Apex" in text
    assert "src/ddp.py:2:30 AMP002 " in text
    assert "2 files changed, 1 unchanged, 1 left as is, 0 skipped, 0 failed.\n" in text
    before = (project / "src" / "train.py").stat().st_mtime_ns
    again = command("--to", "shim", cwd=project)
    assert again.returncode == 0
    assert b"0 files changed" in again.stdout
    assert (project / "src" / "train.py").stat().st_mtime_ns == before


@pytest.mark.parametrize("flags", [["--diff"], ["--check"], ["--diff", "--check"]])
def test_diff_and_check_write_nothing_and_exit_1(project: Path, flags: list[str]) -> None:
    before = snapshot(project)
    assert main(["src", "--to", "shim", *flags]) == 1
    assert snapshot(project) == before


@pytest.mark.parametrize("flag", ["--diff", "--check"])
def test_diff_and_check_exit_0_when_nothing_would_change(project: Path, flag: str) -> None:
    assert main(["src/other.py", "src/ddp.py", "--to", "shim", flag]) == 0


def test_strict_exits_1_if_a_place_is_left_and_0_if_none_is(project: Path) -> None:
    assert main(["src/ddp.py", "--to", "shim"]) == 0
    assert main(["src/ddp.py", "--to", "shim", "--strict"]) == 1
    assert main(["src/train.py", "--to", "shim", "--strict"]) == 0
    (project / "src" / "broken.py").write_bytes(b"import apex\ndef f(:\n")
    assert main(["src", "--to", "shim", "--strict"]) == 2  # what failed outranks what is left


def test_native_is_the_default(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from amp_migrate.rewrite import session

    seen = []

    def noting(source: bytes, settings: Settings, *, own_apex: str) -> Result:
        seen.append(settings)
        return Result(Outcome.UNCHANGED, source)

    monkeypatch.setattr(session, "rewrite_source", noting)
    main(["src/train.py"])
    main(["src/train.py", *ALL_TARGET_OPTIONS, "--select", "amp001,AMP002", "--select", "AMP003", "--ignore", "AMP002"])
    assert seen[0] == Settings(Target())
    assert seen[0].target.to == "native"
    target = Target("shim", "xpu", "bfloat16", (1, 10), Level.REVIEW, True, True, True)
    assert seen[1] == Settings(target, ("AMP001", "AMP002", "AMP003"), ("AMP002",))


def test_select_and_ignore_choose_the_rules(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["src/model.py", "--to", "shim", "--check", "--ignore", "AMP001"])
    text = capsys.readouterr().out
    assert "AMP002" in text
    assert "AMP001" not in text
    main(["src/model.py", "--to", "shim", "--check", "--select", "AMP001"])
    text = capsys.readouterr().out
    assert "AMP001" in text
    assert "AMP002" not in text


def test_stdin_goes_to_stdout_byte_for_byte(project: Path) -> None:
    done = command("-", "--to", "shim", cwd=project, stdin=b"\xef\xbb\xbffrom apex import amp\r\nx = 1")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"\xef\xbb\xbffrom amp_migrate.apex import amp\r\nx = 1"


def test_stdin_without_apex_comes_out_as_it_went_in(project: Path) -> None:
    source = bytes(range(256))
    assert command("-", "--to", "shim", cwd=project, stdin=source).stdout == source


def test_stdin_findings_name_the_file_on_stderr(project: Path) -> None:
    arguments = ["-", "--to", "shim", "--stdin-filename", "src/a.py"]
    done = command(*arguments, cwd=project, stdin=b"from apex import pyprof\n")
    assert (done.returncode, done.stdout) == (0, b"from apex import pyprof\n")
    assert done.stderr.startswith(b"src/a.py:1:18 AMP002 ")


def test_stdin_that_fails_prints_nothing_and_exits_2(project: Path) -> None:
    done = command("-", "--to", "shim", cwd=project, stdin=b"import apex\ndef f(:\n")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"<stdin>" in done.stderr
    assert b"line 2" in done.stderr


def test_stdin_can_be_reported_as_json_beside_the_source(project: Path) -> None:
    report = project / "report.json"
    arguments = ["-", "--to", "shim", "--format", "json"]
    done = command(*arguments, "--output", str(report), cwd=project, stdin=OLD)
    assert (done.returncode, done.stdout, done.stderr) == (0, NEW, b"")
    assert json.loads(report.read_bytes())["changed"][0]["path"] == "<stdin>"
    done = command(*arguments, cwd=project, stdin=OLD)
    assert (done.stdout, json.loads(done.stderr)["exit_code"]) == (NEW, 0)


def test_stdin_with_strict_exits_1_if_something_is_left(project: Path) -> None:
    done = command("-", "--to", "shim", "--strict", cwd=project, stdin=b"from apex import pyprof\n")
    assert (done.returncode, done.stdout) == (1, b"from apex import pyprof\n")


def test_stdin_with_check_and_diff(project: Path) -> None:
    done = command("-", "--to", "shim", "--check", cwd=project, stdin=OLD)
    assert (done.returncode, done.stdout) == (1, b"")
    done = command("-", "--to", "shim", "--diff", cwd=project, stdin=OLD)
    assert done.returncode == 1
    assert b"+" + NEW in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["src", "--to", "jax"], "'jax' is unknown; use native or shim"),
        (["src", "--level", "manual"], "'manual' is unknown; use safe or review"),
        (["src", "--dtype", "float8"], "'float8' is unknown; use float16 or bfloat16"),
        (["src", "--format", "xml"], "'xml' is unknown; use text or json or github"),
        (["src", "--torch", "two"], "'two' isn't a version of the form X.Y"),
        (["src", "--torch", "2.3.1"], "'2.3.1' isn't a version of the form X.Y"),
        (["src", "--device-type", "cuda:0"], "'cuda:0' isn't a device type"),
        (["src", "--jobs", "0"], "'0' isn't a number of processes"),
        (["src", "--select", "AMP001,AMP999"], "--select: no rule's code begins with AMP999; there are AMP001, "),
        (["src", "--ignore", "X"], "--ignore: no rule's code begins with X"),
        (["src", "--select", ","], "no code is given"),
        (["src", "--output", "nowhere/report.txt"], "there is no such folder"),
        (["src", "--dif"], "unrecognized arguments"),
        (["-", "src", "--to", "shim"], "can't be combined"),
        (["--explain", "AMP999"], "no rule is called AMP999"),
        (["--colour"], "unrecognized arguments"),
    ],
)
def test_wrong_usage_exits_2_and_says_why(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    before = snapshot(project)
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
    assert snapshot(project) == before


def test_one_bad_file_never_stops_the_others(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "src" / "broken.py").write_bytes(b"import apex\ndef f(:\n")
    (project / "src" / "two.py").write_bytes(b"import apex\nprint 'x'\n")
    (project / "src" / "locked.py").write_bytes(OLD)
    (project / "src" / "locked.py").chmod(0o444)
    assert main(["missing.py", "src", "--to", "shim"]) == 2
    output = capsys.readouterr()
    assert "error: missing.py: no such file or folder\n" in output.err
    assert "error: src/broken.py: doesn't compile with Python" in output.err
    assert "this is Python 2" in output.err
    assert "error: src/locked.py: can't be written: the file is read-only\n" in output.err
    assert "2 files changed" in output.out
    assert "4 failed" in output.out
    assert (project / "src" / "train.py").read_bytes() == NEW
    assert (project / "src" / "locked.py").read_bytes() == OLD
    assert not list((project / "src").glob(".*"))


def test_a_file_without_read_permission_is_named(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import builtins

    real_open = builtins.open

    def refusing(path: object, *arguments: object, **options: object) -> object:
        if str(path).endswith("train.py"):
            raise PermissionError(13, "Permission denied")
        return real_open(path, *arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(builtins, "open", refusing)  # tests may run as root, whom no mode stops
    assert main(["src", "--to", "shim"]) == 2
    assert "error: src/train.py: Permission denied\n" in capsys.readouterr().err


def test_a_notebook_is_skipped_with_a_message(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "a.ipynb").write_text("{}")
    assert main(["a.ipynb", "--to", "shim"]) == 0
    assert "skipped a.ipynb: notebooks aren't rewritten" in capsys.readouterr().out


def test_the_projects_own_apex_is_left_alone(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "src" / "apex.py").write_text("amp = 1\n")
    assert main(["src", "--to", "shim"]) == 0
    assert (project / "src" / "train.py").read_bytes() == OLD
    assert "the project has a module of that name, src/apex.py" in capsys.readouterr().out


def test_uncommitted_files_are_refused_unless_forced(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-qm", "x")
    (project / "src" / "train.py").write_bytes(OLD + b"x = 1\n")
    (project / "src" / "new.py").write_bytes(OLD)
    (project / "src" / "other.py").write_bytes(b"import torch, os\n")  # changed, but nothing to rewrite in it
    before = snapshot(project / "src")
    assert main(["src", "--to", "shim"]) == 2
    assert snapshot(project / "src") == before
    output = capsys.readouterr()
    assert "  src/new.py\n  src/train.py\n" in output.err
    assert "other.py" not in output.err
    assert "--force" in output.err
    assert "would change src/model.py" in output.out
    assert main(["src", "--to", "shim", "--check"]) == 1  # asking is always allowed
    assert main(["src", "--to", "shim", "--force"]) == 0
    assert (project / "src" / "train.py").read_bytes() == NEW + b"x = 1\n"


def test_a_file_name_is_never_a_pattern_for_git(project: Path) -> None:
    (project / ":(x.py").write_bytes(OLD)
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-qm", "x")
    assert main([":(x.py", "--to", "shim"]) == 0
    assert (project / ":(x.py").read_bytes() == NEW


def test_committed_files_come_back_with_the_command_that_is_named(project: Path) -> None:
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-qm", "x")
    before = {name: content for name, (content, _) in snapshot(project / "src").items()}
    done = command("--to", "shim", ".", cwd=project / "src")
    assert done.returncode == 0
    undo = next(line for line in done.stdout.decode().splitlines() if line.startswith("To undo them: "))
    subprocess.run(undo.split(": ", 1)[1], shell=True, cwd=project / "src", check=True, capture_output=True)
    assert {name: content for name, (content, _) in snapshot(project / "src").items()} == before


def test_the_undo_command_also_works_from_outside_the_checkout(project: Path, tmp_path: Path) -> None:
    git(project / "src", "init", "-q")
    git(project / "src", "add", ".")
    git(project / "src", "commit", "-qm", "x")
    done = command("src/train.py", "--to", "shim", cwd=project)
    undo = next(line for line in done.stdout.decode().splitlines() if line.startswith("To undo them: "))
    assert "git -C " in undo
    subprocess.run(undo.split(": ", 1)[1], shell=True, cwd=project, check=True, capture_output=True)
    assert (project / "src" / "train.py").read_bytes() == OLD


def test_a_folder_called_dot_git_that_is_no_checkout_is_no_obstacle(project: Path) -> None:
    (project / ".git").mkdir()
    assert main(["src", "--to", "shim"]) == 0
    assert (project / "src" / "train.py").read_bytes() == NEW


def test_when_git_refuses_to_answer_nothing_is_written(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    git(project, "init", "-q")
    fake = project / "bin"
    fake.mkdir()
    (fake / "git").write_text("#!/bin/sh\necho 'fatal: detected dubious ownership in repository' >&2\nexit 128\n")
    (fake / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake}{os.pathsep}{os.environ['PATH']}")
    assert main(["src", "--to", "shim"]) == 2
    assert "dubious ownership" in capsys.readouterr().err
    assert (project / "src" / "train.py").read_bytes() == OLD
    assert main(["src", "--to", "shim", "--force"]) == 0
    assert (project / "src" / "train.py").read_bytes() == NEW


def test_list_rules_has_a_line_per_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-rules"]) == 0
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert lines == [[rule.code, rule.level.value] for rule in all_rules()]
    assert ["AMP001", "safe"] in lines


@pytest.mark.parametrize("code", ["AMP001", "AMP002", "amp003"])
def test_explain_says_why_and_shows_code(capsys: pytest.CaptureFixture[str], code: str) -> None:
    assert main(["--explain", code]) == 0
    text = capsys.readouterr().out
    assert text.startswith(code.upper())
    assert "Why:" in text
    assert "    " in text


def test_help_answers_in_under_a_fifth_of_a_second() -> None:
    def once() -> float:
        start = time.perf_counter()
        assert command("--help", cwd=ROOT).returncode == 0
        return time.perf_counter() - start

    assert min(once() for _ in range(5)) < 0.2


def test_a_run_that_meets_no_apex_imports_nothing_heavy(project: Path) -> None:
    code = (
        "import sys\nfrom amp_migrate.rewrite.cli import main\nassert main(['src/other.py', '--format', 'json']) == 0\n"
        "heavy = ('libcst', 'rich', 'pathspec', 'torch', 'packaging', 'multiprocessing', 'tomllib')\n"
        "sys.exit(str([m for m in heavy if m in sys.modules]) if any(m in sys.modules for m in heavy) else 0)"
    )
    (project / "pyproject.toml").write_text("[project]\ndependencies = ['torch==1.6']\n")
    done = subprocess.run([sys.executable, "-c", code], cwd=project, env=PYTHON_PATH, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom amp_migrate.rewrite.cli import build_parser\nbuild_parser().format_help()\n"
        "print([m for m in ('libcst', 'rich', 'pathspec', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout == b"[]\n"
