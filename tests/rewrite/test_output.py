"""The report in its three formats, the diff, and where they go."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import NEW, OLD, PYTHON_PATH, command, git, make_project

from amp_migrate import __version__
from amp_migrate.codemods.findings import Finding, Kind
from amp_migrate.progress import ProgressBar
from amp_migrate.rewrite import FileResult, Outcome, Report, Result, WriteMode
from amp_migrate.rewrite.cli import main
from amp_migrate.rewrite.github import github_report
from amp_migrate.rewrite.json_report import json_report
from amp_migrate.rewrite.output import Style, report_lines
from amp_migrate.rewrite.places import findings_after
from amp_migrate.rewrite.report import Sites
from amp_migrate.rewrite.write import write_bytes

FINDINGS = (
    Finding(3, 5, "AMP101", "the loss is scaled by GradScaler", "", Kind.NOTE),
    Finding(9, 1, "AMP101", "`x` is read, 100% sure", "look:\nthere, soon", Kind.DROPIN),
    Finding(12, 1, "AMP102", "gradients are read", "run it with --level review", Kind.REVIEW),
    Finding(20, 2, "AMP002", "it stays", "replace it", Kind.PERSON),
)
CHANGED = FileResult(
    "a,b:c/train.py", Result(Outcome.CHANGED, b"new\n", {"AMP101": 3, "AMP001": 1}, FINDINGS), b"old\n"
)
FAILED = FileResult("bad.py", Result(Outcome.FAILED, b"", reason="line 1: no"))
SKIPPED = FileResult("big.py", Result(Outcome.SKIPPED, b"", reason="too big"))
REPORT = Report(WriteMode.CHECK, (CHANGED, FAILED, SKIPPED), 7, 1, 2, notes=("setup.cfg allows torch>=1.6",))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def text(report: Report, review_command: str = "") -> list[str]:
    return list(report_lines(report, Style(review_command=review_command)))


def test_a_place_has_a_line_with_what_why_and_what_to_do_and_a_note_is_called_one() -> None:
    lines = text(REPORT)
    assert lines[0] == "would change a,b:c/train.py  AMP001 ×1, AMP101 ×3"
    assert "a,b:c/train.py:3:5 AMP101 note: the loss is scaled by GradScaler." in lines
    assert "a,b:c/train.py:20:2 AMP002 it stays. Replace it." in lines
    assert "skipped big.py: too big" in lines
    assert "note: setup.cfg allows torch>=1.6" in lines


def test_the_table_counts_places_by_rule_and_by_where_they_are_now() -> None:
    assert REPORT.sites == {
        "AMP001": Sites(0, 1, 0),  # an import of the drop-in isn't native
        "AMP002": Sites(0, 0, 1),
        "AMP101": Sites(3, 1, 0),  # the note speaks of one of the three edits
        "AMP102": Sites(0, 1, 0),
    }
    lines = text(REPORT)
    start = lines.index("        native  on the drop-in  for a person")
    assert lines[start + 1] == "AMP001       0               1             0"
    assert lines[start + 3] == "AMP101       3               1             0"


def test_the_last_line_says_what_level_review_would_convert_and_how() -> None:
    assert text(REPORT, "x --level review")[-1] == "--level review would convert 1 more loop: x --level review"
    assert not any("--level review would" in line for line in text(Report(WriteMode.CHECK, (SKIPPED,)), "x"))
    committed = Report(WriteMode.IN_PLACE, (CHANGED, CHANGED), undo={"undo them": "git checkout -- x"})
    assert text(committed, "x")[-1] == "--level review would convert 2 more loops: commit, then x"


def test_the_command_for_level_review_is_the_one_that_was_given(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from amp_migrate.rewrite import session

    review = Result(Outcome.NEEDS_PERSON, OLD, findings=(FINDINGS[2],))
    monkeypatch.setattr(session, "rewrite_source", lambda source, settings, own_apex: review)
    main(["src/train.py", "--level", "safe", "--torch=2.4", "--level=safe", "--exclude", "a b"])
    command = "python -m amp_migrate.rewrite --level review src/train.py --torch=2.4 --exclude 'a b'"
    assert capsys.readouterr().out.splitlines()[-1] == f"--level review would convert 1 more loop: {command}"


def test_json_is_one_object_with_everything_in_it() -> None:
    report = json.loads("\n".join(json_report(REPORT)))
    assert (report["schema"], report["version"], report["mode"], report["exit_code"]) == (1, __version__, "check", 2)
    (changed,) = report["changed"]
    assert (changed["path"], changed["written"], changed["edits"]) == (CHANGED.path, False, {"AMP001": 1, "AMP101": 3})
    assert [note["line"] for note in changed["notes"]] == [3]
    assert [(each["line"], each["kind"]) for each in report["unfixed"]] == [
        (9, "dropin"),
        (12, "review"),
        (20, "person"),
    ]
    assert report["unfixed"][2] == {
        "path": CHANGED.path,
        "line": 20,
        "col": 2,
        "code": "AMP002",
        "level": "manual",
        "kind": "person",
        "message": "it stays",
        "advice": "replace it",
    }
    assert report["failed"] == [{"path": "bad.py", "reason": "line 1: no"}]
    assert report["counts"]["files"] == {"changed": 1, "unchanged": 7, "needs_person": 0, "skipped": 1, "failed": 1}
    assert report["counts"]["sites"]["AMP101"] == {"native": 3, "dropin": 1, "person": 0}


def test_json_of_a_run_is_all_of_stdout(project: Path) -> None:
    done = command("src", "--to", "shim", "--format", "json", "--check", cwd=project)
    assert (done.returncode, done.stderr) == (1, b"")
    report = json.loads(done.stdout)
    assert [each["path"] for each in report["changed"]] == ["src/model.py", "src/train.py"]
    assert [(each["path"], each["line"]) for each in report["unfixed"]] == [("src/ddp.py", 2), ("src/model.py", 1)]
    done = command("src", "--to", "shim", "--format", "json", cwd=project)
    assert [each["line"] for each in json.loads(done.stdout)["unfixed"]] == [2, 2]  # where they are now


def test_github_gets_a_command_a_line_with_its_escapes() -> None:
    assert list(github_report(REPORT)) == [
        "::notice file=a%2Cb%3Ac/train.py,title=amp_migrate::would be rewritten: AMP001 ×1, AMP101 ×3",
        "::notice file=a%2Cb%3Ac/train.py,line=3,col=5,title=AMP101::the loss is scaled by GradScaler.",
        "::notice file=a%2Cb%3Ac/train.py,line=9,col=1,title=AMP101::`x` is read, 100%25 sure. Look:%0Athere, soon.",
        "::notice file=a%2Cb%3Ac/train.py,line=12,col=1,title=AMP102::gradients are read. Run it with --level review.",
        "::warning file=a%2Cb%3Ac/train.py,line=20,col=2,title=AMP002::it stays. Replace it.",
        "::error file=bad.py,title=amp_migrate::line 1: no",
        "::notice file=big.py,title=amp_migrate::skipped: too big",
        "::notice title=amp_migrate::setup.cfg allows torch>=1.6",
    ]


@pytest.mark.parametrize("format", ["text", "json", "github"])
def test_failures_and_refusals_are_in_every_format_and_on_stderr(project: Path, format: str) -> None:
    git(project, "init", "-q")  # nothing is committed, so nothing may be written
    (project / "src" / "broken.py").write_bytes(b"import apex\ndef f(:\n")
    done = command("src", "--to", "shim", "--format", format, cwd=project)
    assert done.returncode == 2
    assert b"error: src/broken.py: doesn't compile" in done.stderr
    assert b"nothing was written" in done.stderr
    if format == "json":
        report = json.loads(done.stdout)
        assert report["refused"] == ["src/model.py", "src/train.py"]
        assert not any(each["written"] for each in report["changed"])
        assert [each["path"] for each in report["failed"]] == ["src/broken.py"]
    if format == "github":
        assert b"::error file=src/train.py,title=amp_migrate::not written" in done.stdout
        assert b"::error file=src/broken.py," in done.stdout


@pytest.mark.parametrize("format", ["text", "json", "github"])
def test_output_gets_the_report_and_stdout_nothing_or_the_diff(project: Path, format: str) -> None:
    arguments = ("src", "--to", "shim", "--format", format)
    shown = command(*arguments, "--check", cwd=project)
    done = command(*arguments, "--check", "--output", "report", cwd=project)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")
    assert (project / "report").read_bytes() == shown.stdout
    done = command(*arguments, "--diff", "--output", "report", cwd=project)
    assert done.stdout.startswith(b"--- a/src/model.py\n")
    assert done.stderr == b""
    assert b"model.py" in (project / "report").read_bytes()
    done = command(*arguments, "--diff", cwd=project)
    assert done.stdout.startswith(b"--- a/src/model.py\n")
    assert b"AMP002" in done.stderr


def test_a_report_that_cannot_be_written_is_an_error(project: Path) -> None:
    done = command("src/train.py", "--to", "shim", "--output", "src", cwd=project)
    assert done.returncode == 2
    assert b"error: the report can't be written: src: " in done.stderr


def test_the_file_of_a_report_is_replaced_as_a_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "report"
    old_mask = os.umask(0o027)
    try:
        write_bytes(str(file), b"one")
    finally:
        os.umask(old_mask)
    assert file.stat().st_mode & 0o777 == 0o640
    file.chmod(0o600)
    inode = file.stat().st_ino
    write_bytes(str(file), b"two")
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"two", 0o600)
    assert file.stat().st_ino != inode
    assert [each.name for each in tmp_path.iterdir()] == ["report"]


def test_what_is_no_file_is_written_into(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_bytes(str(pipe), b"report")
        assert os.read(reader, 100) == b"report"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_findings_of_a_written_file_have_their_new_places() -> None:
    before, after = b"a\nimport apex\nb\nc\n", b"a\nimport torch\nimport x\nb\nd\ne\n"
    first = [Finding(2, 1, "A", "m", "", Kind.NOTE), Finding(3, 1, "B", "m", ""), Finding(4, 1, "C", "old", "")]
    second = [Finding(5, 3, "C", "new", "")]
    placed = findings_after(before, after, first, second)
    assert [(each.code, each.line, each.col) for each in placed] == [("A", 2, 1), ("B", 4, 1), ("C", 5, 3)]
    assert placed[2].message == "new"
    assert findings_after(b"a\n", b"", first[:1], [])[0].line == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_is_shown_on_a_terminal_once_it_takes_long() -> None:
    for stream, after, is_shown in ((Terminal(), 0.0, True), (Terminal(), 60.0, False), (io.StringIO(), 0.0, False)):
        bar = ProgressBar(stream, after)
        bar(1, 2)
        bar.close()
        assert bool(stream.getvalue()) is is_shown


def test_a_quick_run_on_a_terminal_never_imports_rich(project: Path) -> None:
    code = (
        "import sys\nfrom amp_migrate.rewrite.cli import main\nsys.stderr.isatty = lambda: True\n"
        "main(['src', '--to', 'shim', '--check'])\nassert 'rich' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=project, env=PYTHON_PATH, check=True, capture_output=True)


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


def test_check_says_what_would_change(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["src", "--to", "shim", "--check"])
    text = capsys.readouterr().out
    assert "would change src/train.py  AMP001 ×1\n" in text
    assert "src/model.py:1:23 AMP002" in text  # where it is now, since nothing was written
    assert "2 files would be changed" in text


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
