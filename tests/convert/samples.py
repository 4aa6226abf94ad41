"""The files that Apex wrote (``fixtures/checkpoints``), what is known of them, and native objects to load them into."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from dropin.recorded_checkpoints import TinyNet, batch, groups_of

from amp_migrate.apex import optimizers as dropin

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "checkpoints"
NEXT_STEP = "after_one_more_step_in_apex(batch(99))"
#: what continues the optimizer of a sample, by the end of its name
_OPTIMIZERS = {
    "adam_groups": torch.optim.Adam,
    "fusedadam": torch.optim.AdamW,
    "fusedadagrad": torch.optim.Adagrad,
    "fusedlamb": dropin.FusedLAMB,
    "fusednovograd": dropin.FusedNovoGrad,
}


@dataclass(frozen=True)
class Sample:
    name: str
    path: Path
    torch: str
    expected: dict[str, Any]
    native: dict[str, Any]
    layout: Any

    @property
    def id(self) -> str:
        return self.path.stem


def samples() -> list[Sample]:
    records = json.loads((FOLDER / "samples.json").read_text())["records"]
    return [
        Sample(r["name"], FOLDER / file["file"], r["torch"], r["expected"], r["expected_native"], r["layout"])
        for r in records
        for file in r["files"]
    ]


SAMPLES = samples()


def named(start: str) -> list[Sample]:
    return [sample for sample in SAMPLES if sample.name.startswith(start)]


def net_for(sample: Sample) -> Any:
    return TinyNet(batchnorm=not sample.name.startswith("oldfp16"))


def optimizer_for(sample: Sample, net: torch.nn.Module) -> torch.optim.Optimizer:
    """An optimizer with other settings than the sample's: all of those come from the file."""
    for end, cls in _OPTIMIZERS.items():
        if sample.name.endswith(end):
            return cls(groups_of(net), lr=0.5)
    grouped = "fused" in sample.name or "flat" in sample.name or "bert" in sample.name
    params = groups_of(net) if grouped else net.parameters()
    if "bert" in sample.name:
        return torch.optim.Adam(params, lr=0.5)
    if "oldfp16" in sample.name:
        return torch.optim.AdamW(groups_of(net) if "flat" in sample.name else net.parameters(), lr=0.5)
    return torch.optim.SGD(params, lr=0.5)


def step(net: Any, optimizer: torch.optim.Optimizer, scaler: Any, i: int) -> float:
    x, y = batch(i)
    optimizer.zero_grad()
    loss = F.mse_loss(net(x), y)
    if scaler is None:  # a torch without one for the CPU
        loss.backward()
        optimizer.step()
        return loss.item()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def flat(values: Any) -> list[float]:
    """Numbers of a tensor as the samples' description has them."""
    return [float(value) for value in values.reshape(-1).tolist()]
