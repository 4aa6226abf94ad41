"""Converting a big checkpoint against copying it, and against torch.load with torch.save.

Makes a checkpoint of an Adam model as Apex's FusedAdam saved it (float32 weights and two moments; scaler and ``step``
have to change), and converts and copies it in turns. Each pair is on the same disk, with everything written out before
it starts. ``cp`` doesn't wait for the disk, the conversion does (fsync); so ``cp`` followed by ``sync`` stands beside
it. Memory is the peak of the process, over one that only imports torch.

    python benchmarks/convert_speed.py [--gib 4] [--rounds 5] [--folder .] [--legacy]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Sequence

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 4096

#: each program gets the source and the target, and says how long its work took
MAKE = f"""
import sys, torch
path, gib, is_zip = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "zip"
count = max(1, round(gib * 2**30 / (3 * 4 * {WIDTH} * {WIDTH})))
weights = {{f"layers.{{n}}.weight": torch.randn({WIDTH}, {WIDTH}) for n in range(count)}}
moments = {{n: {{"exp_avg": torch.randn({WIDTH}, {WIDTH}), "exp_avg_sq": torch.rand({WIDTH}, {WIDTH})}}
           for n in range(count)}}
group = {{"lr": 1e-3, "bias_correction": True, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "step": 10,
         "params": list(range(count))}}
amp = {{"loss_scaler0": {{"loss_scale": 65536.0, "unskipped": 7}}}}
value = {{"model": weights, "optimizer": {{"state": moments, "param_groups": [group]}}, "amp": amp}}
torch.save(value, path, _use_new_zipfile_serialization=is_zip)
"""
CONVERT = """
import sys, time
start = time.perf_counter()
from amp_migrate.convert import convert_file
convert_file(sys.argv[1], sys.argv[2])
print(time.perf_counter() - start)
"""
LOAD_AND_SAVE = """
import sys, time, torch
start = time.perf_counter()
torch.save(torch.load(sys.argv[1]), sys.argv[2])
print(time.perf_counter() - start)
"""
IMPORT_TORCH = "import torch; print(0)"
CHECK = """
import sys, torch
old, new = torch.load(sys.argv[1]), torch.load(sys.argv[2])
assert all(torch.equal(old["model"][name], new["model"][name]) for name in old["model"])
state = new["optimizer"]["state"]
assert all(torch.equal(old["optimizer"]["state"][n]["exp_avg"], state[n]["exp_avg"]) for n in state)
assert all(float(each["step"]) == 10 for each in state.values()) and new["amp"]["scale"] == 65536.0
print(0)
"""


@dataclass(frozen=True)
class Cost:
    """What one run took: its own time, and the peak memory of its process."""

    seconds: float
    peak_mb: float


def python(program: str, *arguments: object) -> Cost:
    """Run a program in a process of its own."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"a part of the benchmark ended with {process.returncode}; its error is above")
    return Cost(float(said or 0), usage.ru_maxrss / 1024)


def command(*lines: Sequence[str | Path]) -> Cost:
    start = time.perf_counter()
    for line in lines:
        subprocess.run([str(part) for part in line], check=True)
    return Cost(time.perf_counter() - start, 0)


def measure(source: Path, target: Path, rounds: int, with_torch: bool) -> dict[str, list[Cost]]:
    """Run everything in turns, so that a slow moment of the disk hits all alike."""
    runs: dict[str, Callable[[], Cost]] = {
        "cp": lambda: command(["cp", source, target]),
        "convert": lambda: python(CONVERT, source, target),
        "cp and sync": lambda: command(["cp", source, target], ["sync", target]),
    }
    if with_torch:
        runs["torch.load and torch.save"] = lambda: python(LOAD_AND_SAVE, source, target)
    costs: dict[str, list[Cost]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            target.unlink(missing_ok=True)
            os.sync()
            costs[name].append(run())
    target.unlink()
    return costs


def ratio(costs: dict[str, list[Cost]], name: str, base: str) -> float:
    return statistics.median(a.seconds / b.seconds for a, b in zip(costs[name], costs[base]))


def report(costs: dict[str, list[Cost]], torch_mb: float) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, each in costs.items():
        seconds = [cost.seconds for cost in each]
        peak = max(cost.peak_mb for cost in each)
        print(f"{name:27} {statistics.median(seconds):7.2f} s  (from {min(seconds):.2f} to {max(seconds):.2f})", end="")
        print(f"  peak {peak:7.0f} MB, {peak - torch_mb:+.0f} MB over import torch" if peak else "")
        figures[f"{name}: s"] = statistics.median(seconds)
    for base in ("cp", "cp and sync"):
        figures[f"convert / {base}"] = ratio(costs, "convert", base)
        print(f"convert / {base}: {figures[f'convert / {base}']:.2f} (median of pairs)")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default=".", help="where to put the files, about 2.1 times their size")
    parser.add_argument("--legacy", action="store_true", help="a file of torch's format before 1.6")
    parser.add_argument("--without-torch", action="store_true", help="leave out torch.load with torch.save")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="convert_speed.", dir=options.folder))
    try:
        source, target = folder / "old.pt", folder / "new.pt"
        python(MAKE, source, options.gib, "legacy" if options.legacy else "zip")
        print(f"{source.stat().st_size / 2**30:.2f} GiB")
        torch_mb = python(IMPORT_TORCH).peak_mb
        python(CONVERT, source, target)
        python(CHECK, source, target)
        figures = report(measure(source, target, options.rounds, not options.without_torch), torch_mb)
        if options.json:
            print(json.dumps(figures))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
