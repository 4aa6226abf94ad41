"""The rewriter on a big project that hardly uses Apex, against ``ruff check`` on the same files.

Builds a tree of 5,000 files and about 80 MB from the packages of the running interpreter; one file in a hundred is a
legacy program that uses Apex. Each tool runs a few times, in turns; CPU time (of all processes) and the peak memory of
the biggest process come from the operating system. With --libcst, LibCST's own runner renames something in a sample of
the same files, and its time is scaled up to all of them.

    python benchmarks/rewrite_speed.py [--files 5000] [--rounds 3] [--jobs N] [--libcst]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = sorted((ROOT / "fixtures" / "programs").glob("*.py"))
FILES_IN_A_FOLDER = 100
BYTES_PER_FILE = 16_000
APEX_SHARE = 0.01
LIBCST_SAMPLE = 100


@dataclass(frozen=True)
class Cost:
    """What one run of a command took."""

    cpu: float
    peak_mb: float


def measure(command: Sequence[str], cwd: Path) -> Cost:
    """Run ``command`` and return its cost, its own children included."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}; run it in {cwd} to see why")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def sources(total: int) -> Iterator[Path]:
    """Yield files of the installed packages, over and over, so that their sizes average about ``BYTES_PER_FILE``."""
    found = sorted(Path(sysconfig.get_path("purelib")).rglob("*.py"))
    if not found:
        raise SystemExit("no Python files in the packages of this interpreter: install some first")
    given = size = 0
    while given < total:
        for path in found:
            length = path.stat().st_size
            # skip small files while the average is too low, and big ones while it's too high
            if length and (length < BYTES_PER_FILE) == (size > given * BYTES_PER_FILE) and given < total:
                given, size = given + 1, size + length
                yield path


def build_tree(root: Path, total: int) -> int:
    """Fill ``root`` and return its size in bytes."""
    if not PROGRAMS:
        raise SystemExit("no legacy programs in fixtures/programs: run this from a clone")
    legacy = round(total * APEX_SHARE)
    every = total // legacy if legacy else total + 1
    others = sources(total - legacy)
    size = 0
    for number in range(total):
        folder = root / f"part_{number // FILES_IN_A_FOLDER:03}"
        folder.mkdir(parents=True, exist_ok=True)
        is_legacy = number % every == every - 1 and number // every < legacy
        origin = PROGRAMS[number // every % len(PROGRAMS)] if is_legacy else next(others, None)
        if origin is not None:
            size += (folder / f"file_{number:05}.py").write_bytes(origin.read_bytes())
    return size


def libcst_cost(root: Path, total: int, size: int) -> Cost:
    """Return what LibCST's runner would take for everything, from a sample."""
    files = sorted(root.rglob("*.py"))[:: max(1, total // LIBCST_SAMPLE)]
    share = size / sum(path.stat().st_size for path in files)
    with tempfile.TemporaryDirectory() as sample:
        for path in files:
            shutil.copy(path, sample)
        rename = ["rename.RenameCommand", "--old_name=foo.bar", "--new_name=foo.baz", "--no-format", "."]
        cost = measure([sys.executable, "-m", "libcst.tool", "codemod", *rename], Path(sample))
    return Cost(cost.cpu * share, cost.peak_mb)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, help="for the rewriter; default: its own")
    parser.add_argument("--libcst", action="store_true", help="also LibCST's runner, on a sample")
    options = parser.parse_args()
    jobs = [] if options.jobs is None else [f"--jobs={options.jobs}"]
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--silent", "."]
    ours = [sys.executable, "-m", "amp_migrate.rewrite", "--check", *jobs, "."]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        size = build_tree(root, options.files)
        print(f"{options.files} files, {size / 1e6:.0f} MB, {round(options.files * APEX_SHARE)} with Apex")
        rounds = [(measure(ours, root), measure(ruff, root)) for _ in range(options.rounds)]
        show("amp_migrate.rewrite --check", [ours for ours, _ in rounds])
        show("ruff check", [ruff for _, ruff in rounds])
        ratios = [ours.cpu / ruff.cpu for ours, ruff in rounds]
        print(f"CPU ratio to ruff: {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})")
        if options.libcst:
            cost = libcst_cost(root, options.files, size)
            show("LibCST's rename, scaled up", [cost])
            ratio = cost.cpu / statistics.median(ours.cpu for ours, _ in rounds)
            print(f"CPU ratio of LibCST's runner to ours: {ratio:.0f}")


def show(what: str, costs: Sequence[Cost]) -> None:
    """Print the median CPU time and the highest peak."""
    cpu = statistics.median(cost.cpu for cost in costs)
    print(f"{what:28} {cpu:8.2f} s CPU  {max(cost.peak_mb for cost in costs):6.0f} MB at most in one process")


if __name__ == "__main__":
    main()
