"""What each program does on the drop-in, as small files under ``fixtures/records``: read, write, compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from runs import ROOT, Run

RECORDS = ROOT / "fixtures" / "records"


def machine() -> dict[str, str]:
    """What the last bits depend on: torch, and the instructions that its kernels use."""
    extensions = ("amx_tile", "amx_fp16", "avx512_bf16", "avx512_vnni")
    has = [name for name in extensions if getattr(torch.cpu, f"_is_{name}_supported", bool)()]
    return {"torch": str(torch.__version__), "cpu": " ".join([torch.backends.cpu.get_cpu_capability(), *has])}


def summary(run: Run) -> dict[str, Any]:
    """The steps as [optimizer, backwards, skipped, scale, checksum], and the last line that was printed."""
    steps = [[s.optimizer, s.backwards, s.skipped, s.scale, s.checksum] for s in run.steps]
    return {**machine(), "final": run.final, "steps": steps}


def write(name: str, run: Run) -> None:
    """Write the record of a run, one step a line."""
    data = summary(run)
    steps = ",\n".join("  " + json.dumps(step) for step in data.pop("steps"))
    head = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in data.items())
    (RECORDS / f"{name}.json").write_text(f'{{\n{head} "steps": [\n{steps}\n ]\n}}\n', encoding="utf-8")


def read(name: str) -> dict[str, Any]:
    """The record of a program."""
    data: dict[str, Any] = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    return data


def path_of(name: str) -> Path:
    """Where a program's record is."""
    return RECORDS / f"{name}.json"


def same_machine(record: dict[str, Any]) -> bool:
    """Whether bits can be compared with this record."""
    return {key: record[key] for key in machine()} == machine()


def differences(record: dict[str, Any], run: Run) -> list[str]:
    """How ``run`` differs from its record: in everything, or on another machine in what holds on each."""
    found = summary(run)
    if same_machine(record):
        wrong = [f"step {i}: {a} and {b}" for i, (a, b) in enumerate(zip(record["steps"], found["steps"])) if a != b]
        if record["final"] != found["final"]:
            wrong.append(f"{record['final']} and {found['final']}")
    else:
        wrong = [
            f"step {i}: {a} and {b}" for i, (a, b) in enumerate(zip(record["steps"], found["steps"])) if a[:2] != b[:2]
        ]
    if len(record["steps"]) != len(found["steps"]):
        wrong.append(f"{len(record['steps'])} steps and {len(found['steps'])}")
    return wrong
