"""Checkpoints as the frameworks wrote them, built by hand from their sources, and what they have in common."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import pytest
import torch

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
GRAD_SCALER = getattr(getattr(torch, "amp", None), "GradScaler", None)
needs_scaler = pytest.mark.skipif(GRAD_SCALER is None, reason="GradScaler for a CPU since torch 2.3")

APEX = {"loss_scaler0": {"loss_scale": 1024.0, "unskipped": 7}}
SEVERAL = {**APEX, "loss_scaler1": {"loss_scale": 2.0, "unskipped": 0}}
NATIVE = {
    "scale": 1024.0,
    "growth_factor": 2.0,
    "backoff_factor": 0.5,
    "growth_interval": 2000,
    "_growth_tracker": 7,
}


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.sin(torch.arange(float(torch.Size(shape).numel())) * 0.7 + seed).reshape(shape)


def weights(prefix: str = "", seed: int = 0) -> OrderedDict[str, torch.Tensor]:
    """A small model's state, in model order: a weight, a bias, a norm's weight and bias, a last weight."""
    shapes = {"fc.weight": (3, 2), "fc.bias": (3,), "norm.weight": (3,), "norm.bias": (3,), "out.weight": (2, 3)}
    return OrderedDict(
        (prefix + name, seeded(*shape, seed=seed + index)) for index, (name, shape) in enumerate(shapes.items())
    )


def halved(state: Any) -> OrderedDict[str, torch.Tensor]:
    return OrderedDict((key, value.half()) for key, value in state.items())


def adam_state(params: Any, step: Any = 3, group: Any = ()) -> dict[str, Any]:
    """A state like torch's Adam under torch 1.5 to 1.11."""
    state = {
        i: {"step": step, "exp_avg": p.detach().float() * 0.1, "exp_avg_sq": p.detach().float() ** 2}
        for i, p in enumerate(params)
    }
    settings = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False, **dict(group)}
    return {"state": state, "param_groups": [{**settings, "params": list(range(len(state)))}]}


def fused_state(params: Any, step: Any = 3, **settings: Any) -> dict[str, Any]:
    """A state like Apex's FusedAdam."""
    state = adam_state(params)
    for entry in state["state"].values():
        del entry["step"]
    (group,) = state["param_groups"]
    del group["amsgrad"]
    group.update({"bias_correction": True, "step": step, **settings})
    return state


def sgd_state(params: Any, momentum: float = 0.9) -> dict[str, Any]:
    params = list(params)
    return {
        "state": {i: {"momentum_buffer": p.detach().float() * 0.1} for i, p in enumerate(params)},
        "param_groups": [
            {
                "lr": 0.1,
                "momentum": momentum,
                "dampening": 0,
                "weight_decay": 0.0,
                "nesterov": False,
                "params": list(range(len(params))),
            }
        ],
    }


class LossScaler:
    """Has the name and attributes of apex.amp.scaler.LossScaler, or of one of the older ones."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class DynamicLossScaler(LossScaler):
    pass


def wrapped(inner: Any, masters: Any, key: str = "fp32_from_fp16", scaler: Any = None) -> dict[str, Any]:
    """A state like that of apex.fp16_utils.FP16_Optimizer."""
    made = scaler or LossScaler(
        _loss_scale=512.0, _unskipped=5, _scale_seq_len=1000, dynamic=True, _max_loss_scale=2.0**24
    )
    return {
        "loss_scaler": made,
        "dynamic_loss_scale": True,
        "overflow": False,
        "first_closure_call_this_step": True,
        "optimizer_state_dict": inner,
        key: masters,
    }


def torch_load(path: Any, **settings: Any) -> Any:
    """``torch.load``, with ``weights_only=True`` where torch has it (that of 1.13 doesn't read floats)."""
    strict = VERSION >= (2, 0)
    return torch.load(path, **({"weights_only": True} if strict else {}), **settings)


def equal(one: Any, other: Any) -> bool:
    """Whether two checkpoints hold the same, in the same order, down to dtypes."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(equal(a, b) for a, b in zip(one, other))
    return bool(one == other)


def snapshot(value: Any) -> Any:
    return copy.deepcopy(value)
