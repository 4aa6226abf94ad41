"""Folders that ``torch.distributed.checkpoint`` itself writes and reads, for the tests of their conversion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torch", minversion="2.2", reason="torch.distributed.checkpoint.load came with 2.2")
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from .commands import amp_state, names

WEIGHT = torch.arange(12, dtype=torch.float32).reshape(4, 3) / 7


def fused_adam(keys: tuple[Any, ...] = (0, 1)) -> dict[str, Any]:
    moments = {key: {"exp_avg": torch.full((2,), 0.5), "exp_avg_sq": torch.full((2,), 0.25)} for key in keys}
    group = {"lr": 0.1, "bias_correction": True, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "step": 7}
    return {"state": moments, "param_groups": [{**group, "params": list(keys)}]}


def state(**more: Any) -> dict[str, Any]:
    model = {"weight": WEIGHT, "half": torch.ones(3).bfloat16(), "count": torch.tensor(5)}
    return {"model": model, "optimizer": fused_adam(), "amp": amp_state(), "epoch": 3, **more}


def saved(folder: Path, value: Any = None) -> Path:
    save(state() if value is None else value, checkpoint_id=str(folder))
    return folder


def loaded(folder: Path, *keys: str) -> dict[str, Any]:
    """What DCP itself reads, by flat names."""
    metadata = FileSystemReader(str(folder)).read_metadata()
    made: dict[str, Any] = {}
    for name, entry in metadata.state_dict_metadata.items():
        made[name] = torch.empty(entry.size, dtype=entry.properties.dtype) if hasattr(entry, "size") else None
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    load(made, storage_reader=FileSystemReader(str(folder)), planner=planner)
    return {name: made[name] for name in made if name.startswith(keys)} if keys else made


def files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names(folder) if (folder / name).is_file()}
