"""State dicts of FP16_Optimizer before 2019-08, which kept each group's masters and state in one flat tensor.

Source: apex/optimizers/fp16_optimizer.py from 475fca23 (``fp32_groups_flat``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def is_flat(state_dict: dict[str, Any]) -> bool:
    """Whether the masters in ``state_dict`` are flat."""
    return "fp32_groups_flat" in state_dict


def unflattened(state_dict: dict[str, Any], groups: list[list[Tensor]]) -> dict[str, Any]:
    """The state dict with masters and optimizer state cut into one tensor per parameter.

    Args:
        state_dict: with ``fp32_groups_flat``.
        groups: the present masters, which give the shapes.

    Raises:
        ValueError: if the number of groups or of elements differs.
    """
    flat = state_dict["fp32_groups_flat"]
    if len(flat) != len(groups):
        raise ValueError(f"The checkpoint has {len(flat)} parameter groups, the optimizer {len(groups)}.")
    masters = [_cut(one, like) for one, like in zip(flat, groups)]
    optimizer = _unflattened_optimizer(state_dict["optimizer_state_dict"], groups)
    rest = {key: value for key, value in state_dict.items() if key != "fp32_groups_flat"}
    return {**rest, "fp32_groups": masters, "optimizer_state_dict": optimizer}


def _unflattened_optimizer(saved: dict[str, Any], groups: list[list[Tensor]]) -> dict[str, Any]:
    state: dict[int, Any] = {}
    new_groups, first = [], 0
    for group, like in zip(saved["param_groups"], groups):
        flat_state = saved["state"].get(group["params"][0], {})
        ids = list(range(first, first + len(like)))
        first += len(like)
        new_groups.append({**group, "params": ids})
        parts = {key: _cut(value, like) for key, value in flat_state.items() if isinstance(value, Tensor)}
        numbers = {key: value for key, value in flat_state.items() if not isinstance(value, Tensor)}
        if flat_state:
            state.update({i: {**numbers, **{key: part[n] for key, part in parts.items()}} for n, i in enumerate(ids)})
    return {"state": state, "param_groups": new_groups}


def _cut(flat: Tensor, like: list[Tensor]) -> list[Tensor]:
    sizes = [tensor.numel() for tensor in like]
    if flat.numel() != sum(sizes):
        raise ValueError(
            f"The checkpoint's group has {flat.numel()} elements, the optimizer's {sum(sizes)}. "
            "Build the optimizer over the same parameters, in the same order."
        )
    return [part.reshape(tensor.shape) for part, tensor in zip(torch.split(flat.detach(), sizes), like)]
