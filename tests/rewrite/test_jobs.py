"""Several processes do the same as one."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Iterator, Sequence

import pytest
from commands import OLD, command, make_project

from amp_migrate.codemods.target import SHIM, Target
from amp_migrate.rewrite import FileResult, Outcome, Result, Settings, WriteMode, pool, rewrite_paths
from amp_migrate.rewrite.jobs import FILES_PER_PROCESS, default_jobs, processes_for

TO_SHIM = Settings(Target(to=SHIM))
MANY = FILES_PER_PROCESS * 4


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_project(tmp_path)
    for number in range(MANY):
        (tmp_path / "src" / f"f{number}.py").write_bytes(OLD * (number + 1))
    (tmp_path / "src" / "broken.py").write_bytes(b"import apex\ndef f(:\n")
    (tmp_path / "src" / "skipped.py").write_bytes(b"import apex  # amp-migrate: skip-file\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("format", ["text", "json", "github"])
@pytest.mark.parametrize("mode", ["--diff", "--check"])
def test_the_output_is_the_same_for_any_number_of_jobs(project: Path, mode: str, format: str) -> None:
    runs = [
        command("src", "--to", "shim", mode, "--format", format, "--jobs", str(jobs), cwd=project) for jobs in (1, 2, 7)
    ]
    assert runs[0].returncode == 2
    assert b"f31.py" in runs[0].stdout
    for run in runs[1:]:
        assert (run.returncode, run.stdout, run.stderr) == (runs[0].returncode, runs[0].stdout, runs[0].stderr)


def test_files_are_written_with_several_jobs_too(project: Path) -> None:
    report = rewrite_paths(["src"], TO_SHIM, jobs=2)
    assert report.count(Outcome.CHANGED) == MANY + 2
    assert all(b"from apex" not in file.read_bytes() for file in (project / "src").glob("f*.py"))


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_are_in_the_order_of_the_files(project: Path, monkeypatch: pytest.MonkeyPatch, jobs: int) -> None:
    from amp_migrate.rewrite import session

    real_read = session._read

    def refusing(path: str) -> bytes:
        if path.endswith("f5.py"):
            raise PermissionError(13, "Permission denied")
        return real_read(path)

    monkeypatch.setattr(session, "_read", refusing)
    report = rewrite_paths(["src"], TO_SHIM, mode=WriteMode.CHECK, jobs=jobs)
    paths = [each.path for each in report.results]
    assert paths == sorted(paths)
    assert "src/f5.py" in paths


def test_processes_are_started_only_where_they_are_worth_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def noting(work: pool.Work, paths: Sequence[str], processes: int, failed: object) -> Iterator[FileResult]:
        asked.append(processes)
        return map(work, paths)

    monkeypatch.setattr(pool, "in_order", noting)
    rewrite_paths(["src"], TO_SHIM, mode=WriteMode.CHECK, jobs=1)
    rewrite_paths(["src/train.py", "src/other.py"], TO_SHIM, mode=WriteMode.CHECK, jobs=8)
    assert asked == []
    rewrite_paths(["src"], TO_SHIM, mode=WriteMode.CHECK, jobs=3)
    assert asked == [3]
    assert [processes_for(files, 4) for files in (0, 1, FILES_PER_PROCESS * 2 - 1)] == [1, 1, 1]
    assert processes_for(FILES_PER_PROCESS * 2, 4) == 2
    assert processes_for(10_000, 4) == 4
    assert default_jobs() >= 1


def test_files_without_apex_never_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(MANY):
        (tmp_path / f"f{number}.py").write_bytes(b"import torch\n")
    monkeypatch.setattr(pool, "in_order", None)  # whatever calls it fails
    assert rewrite_paths([str(tmp_path)], TO_SHIM, jobs=8).unchanged == MANY


def test_progress_counts_every_file_once(project: Path) -> None:
    seen: list[tuple[int, int]] = []
    rewrite_paths(
        ["src"], TO_SHIM, mode=WriteMode.CHECK, jobs=2, on_progress=lambda done, total: seen.append((done, total))
    )
    total = MANY + 6
    assert seen == [(done, total) for done in range(2, total + 1)]  # other.py has no Apex


def failed(path: str, reason: str) -> FileResult:
    return FileResult(path, Result(Outcome.FAILED, b"", reason=reason))


def crashing(path: str) -> FileResult:
    if path == "bad":
        os._exit(3)
    return FileResult(path, Result(Outcome.UNCHANGED, path.encode()))


def test_a_process_that_ends_costs_only_its_own_file() -> None:
    paths = ["a", "bad", *(f"c{number}" for number in range(30))]
    results = list(pool.in_order(crashing, paths, 2, failed))
    assert [each.path for each in results] == paths
    assert [each.path for each in results if each.result.outcome is Outcome.FAILED] == ["bad"]
    assert "ended" in results[1].result.reason


def slow(path: str) -> FileResult:
    time.sleep(0.2)
    return FileResult(path, Result(Outcome.UNCHANGED, b""))


def test_an_interrupt_does_not_wait_for_the_files_that_are_left() -> None:
    results = pool.in_order(slow, [str(number) for number in range(200)], 2, failed)
    next(results)
    start = time.monotonic()
    results.close()  # type: ignore[attr-defined]
    assert time.monotonic() - start < 5
