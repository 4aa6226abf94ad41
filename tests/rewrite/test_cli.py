"""The command: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from amp_migrate.rewrite.cli import main

ROOT = Path(__file__).resolve().parents[2]
OLD = b"from apex import amp\n"
NEW = b"from amp_migrate.apex import amp\n"
PYTHON_PATH = {**os.environ, "PYTHONPATH": str(ROOT)}


def command(*arguments: str, cwd: Path, stdin: bytes = b"", **variables: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "amp_migrate.rewrite", *arguments],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        env={**PYTHON_PATH, **variables},
        check=False,
    )


def git(folder: Path, *arguments: str) -> None:
    name = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "-C", str(folder), *name, *arguments], check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_bytes(OLD)
    (tmp_path / "src" / "model.py").write_bytes(b"from apex import amp, transformer\r\n")
    (tmp_path / "src" / "other.py").write_bytes(b"import torch\r\n")
    (tmp_path / "src" / "ddp.py").write_bytes(b"import os\nfrom apex.transformer import DistributedDataParallel\n")
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
    assert "2 files changed, 1 unchanged, 1 left for a person, 0 skipped, 0 failed.\n" in text
    assert "AMP001 ×2" in text
    before = (project / "src" / "train.py").stat().st_mtime_ns
    again = command("--to", "shim", cwd=project)
    assert again.returncode == 0
    assert b"0 files changed" in again.stdout
    assert (project / "src" / "train.py").stat().st_mtime_ns == before


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(f): (f.read_bytes(), f.stat().st_mtime_ns) for f in folder.rglob("*") if f.is_file()}


@pytest.mark.parametrize("flags", [["--diff"], ["--check"], ["--diff", "--check"]])
def test_diff_and_check_write_nothing_and_exit_1(project: Path, flags: list[str]) -> None:
    before = snapshot(project)
    assert main(["src", "--to", "shim", *flags]) == 1
    assert snapshot(project) == before


@pytest.mark.parametrize("flag", ["--diff", "--check"])
def test_diff_and_check_exit_0_when_nothing_would_change(project: Path, flag: str) -> None:
    assert main(["src/other.py", "src/ddp.py", "--to", "shim", flag]) == 0


def test_check_says_what_would_change(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["src", "--to", "shim", "--check"])
    text = capsys.readouterr().out
    assert "would change src/train.py  AMP001 ×1\n" in text
    assert "src/model.py:1:23 AMP002" in text  # where it is now, since nothing was written
    assert "2 files would be changed" in text


def test_the_diff_is_the_whole_stdout_and_can_be_applied(project: Path) -> None:
    (project / "src" / "end.py").write_bytes(b"x = 1\nfrom apex import amp")
    done = command("src", "--to", "shim", "--diff", cwd=project)
    assert b"AMP002" in done.stderr
    assert b"\033[" not in done.stdout
    assert b"--- a/src/train.py\n+++ b/src/train.py\n" in done.stdout
    subprocess.run(["git", "apply", "-p1"], input=done.stdout, cwd=project, check=True)
    assert command("src", "--to", "shim", "--check", cwd=project).returncode == 0
    assert (project / "src" / "end.py").read_bytes() == b"x = 1\nfrom amp_migrate.apex import amp"


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_the_diff_is_coloured_on_a_terminal_unless_the_user_objects(
    project: Path, variables: dict[str, str], coloured: bool
) -> None:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    environment = {**PYTHON_PATH, "TERM": "xterm", **variables}
    if "NO_COLOR" not in variables:
        environment.pop("NO_COLOR", None)
    arguments = [sys.executable, "-m", "amp_migrate.rewrite", "src/train.py", "--to", "shim", "--diff"]
    subprocess.run(arguments, cwd=project, stdout=theirs, stderr=subprocess.DEVNULL, env=environment, check=False)
    os.close(theirs)
    text = os.read(ours, 100_000)
    os.close(ours)
    assert b"+from amp_migrate.apex import amp" in text
    assert (b"\033[32m+from" in text) is coloured


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


def test_stdin_with_check_and_diff(project: Path) -> None:
    done = command("-", "--to", "shim", "--check", cwd=project, stdin=OLD)
    assert (done.returncode, done.stdout) == (1, b"")
    done = command("-", "--to", "shim", "--diff", cwd=project, stdin=OLD)
    assert done.returncode == 1
    assert b"+" + NEW in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["src"], "--to is required"),
        (["src", "--to", "native"], "not in this version yet"),
        (["src", "--to", "jax"], "'jax' is unknown"),
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


def test_left_out_folders_are_counted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "src" / ".venv" / "lib").mkdir(parents=True)
    (project / "src" / ".venv" / "lib" / "x.py").write_bytes(OLD)
    (project / "src" / ".gitignore").write_text("gen.py\n")
    (project / "src" / "gen.py").write_bytes(OLD)
    main(["src", "--to", "shim"])
    assert "Left out: 1 folder and 1 file" in capsys.readouterr().out
    assert (project / "src" / ".venv" / "lib" / "x.py").read_bytes() == OLD
    assert (project / "src" / "gen.py").read_bytes() == OLD
    main(["src/gen.py", "--to", "shim"])
    assert (project / "src" / "gen.py").read_bytes() == NEW


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


def test_paths_in_any_encoding_can_be_printed(project: Path) -> None:
    name = os.fsdecode(b"caf\xe9.py")
    (project / "src" / name).write_bytes(OLD)
    done = command("src", "--to", "shim", cwd=project, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"caf\xe9.py  AMP001 x1\n" in done.stdout


def test_a_reader_that_goes_away_costs_no_file(project: Path) -> None:
    for number in range(300):
        (project / "src" / f"f{number}.py").write_bytes(OLD)
    line = f"{sys.executable} -m amp_migrate.rewrite src --to shim | head -n 1"
    done = subprocess.run(line, shell=True, cwd=project, env=PYTHON_PATH, capture_output=True, check=True)
    assert b"Traceback" not in done.stderr
    assert all(file.read_bytes() != OLD for file in (project / "src").glob("f*.py"))


def test_list_rules_has_a_line_per_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-rules"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["AMP001", "safe"], ["AMP002", "manual"], ["AMP003", "manual"]]


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


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom amp_migrate.rewrite.cli import build_parser\nbuild_parser().format_help()\n"
        "print([m for m in ('libcst', 'rich', 'pathspec', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout == b"[]\n"
