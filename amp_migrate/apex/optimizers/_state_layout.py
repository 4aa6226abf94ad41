"""State dicts: Apex's layout, and torch's brought into it.

Apex counts steps per group (``group["step"]``), torch per parameter (``state[p]["step"]``); groups of torch's
optimizers have keys that Apex's lack, and the reverse.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...notices import notice_once
from ._tensor_lists import HALF_TYPES

if TYPE_CHECKING:
    from ._base import FusedOptimizer

#: group keys of torch's optimizers that say how to compute, not what
_HOW = ("foreach", "fused", "differentiable", "capturable", "decoupled_weight_decay", "initial_accumulator_value")
#: group keys of torch's optimizers that change the result: any value that counts as true can't be continued here
_NOT_HERE = ("amsgrad", "maximize", "lr_decay")


def in_apex_layout(state_dict: dict[str, Any], optimizer: FusedOptimizer) -> dict[str, Any]:
    """Return ``state_dict`` in Apex's layout; it is not changed itself, and tensors are shared.

    Raises:
        RuntimeError: for a setting that these optimizers don't have.
    """
    state = {key: dict(value) if isinstance(value, dict) else value for key, value in state_dict["state"].items()}
    saved_groups = state_dict["param_groups"]
    own_groups = list(optimizer.param_groups) + [optimizer.defaults] * len(saved_groups)
    groups = [_group(saved, own, state, optimizer) for saved, own in zip(saved_groups, own_groups)]
    return {**state_dict, "state": state, "param_groups": groups}


def _group(
    saved: dict[str, Any], own: dict[str, Any], state: dict[Any, Any], optimizer: FusedOptimizer
) -> dict[str, Any]:
    name = type(optimizer).__name__
    for key in _NOT_HERE:
        if saved.get(key):
            raise RuntimeError(
                f"This checkpoint was saved with {key}={saved[key]}, which {name} does not have. "
                "Continue with the torch optimizer that saved it."
            )
    _compare_decay_mode(saved, optimizer)
    group = {key: value for key, value in saved.items() if key not in _HOW + _NOT_HERE}
    _move_steps(group, [state[i] for i in saved["params"] if isinstance(state.get(i), dict)], optimizer)
    for key in optimizer.defaults:
        if key in own:
            group.setdefault(key, own[key])
    return group


def _move_steps(group: dict[str, Any], states: list[dict[str, Any]], optimizer: FusedOptimizer) -> None:
    """Put the step count where the optimizer has it; one that has none drops it."""
    counted = [one for one in states if "step" in one]
    if optimizer._step_count_in == "parameter":
        for one in counted:
            one["step"] = int(one["step"])
        return
    steps = [int(one.pop("step")) for one in counted]
    if optimizer._step_count_in != "group" or not steps:
        return
    group.setdefault("step", max(steps))
    if min(steps) != max(steps):
        notice_once(
            f"The parameters of one group were stepped {min(steps)} to {max(steps)} times; {type(optimizer).__name__} "
            f"counts per group and continues with {max(steps)}. Put parameters that train from another time on in a "
            "group of their own."
        )


def _compare_decay_mode(saved: dict[str, Any], optimizer: FusedOptimizer) -> None:
    """Weight decay of Adam and of AdamW are different things; only torch 2.7 and newer save which it was."""
    decoupled, own = saved.get("decoupled_weight_decay"), getattr(optimizer, "adam_w_mode", None)
    if decoupled is None or own is None or not saved.get("weight_decay") or bool(decoupled) == bool(own):
        return
    notice_once(
        f"The checkpoint's weight decay is that of {'AdamW' if decoupled else 'Adam'}, but {type(optimizer).__name__} "
        f"was built with adam_w_mode={bool(own)}. Build it with adam_w_mode={bool(decoupled)} to continue as before."
    )


def restore_state_dtypes(optimizer: FusedOptimizer, state_dict: dict[str, Any]) -> None:
    """Give half parameters the float32 state of the file back: torch's loading rounds it to the parameter's dtype.

    Under amp's O2 parameters are half until the first backward makes masters, and a squared gradient may be too small
    for float16. Apex lost it there.
    """
    ids = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    params = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for saved_id, param in zip(ids, params):
        saved = state_dict["state"].get(saved_id)
        if param.dtype not in HALF_TYPES or not saved:
            continue
        for name in optimizer._state_names:
            value = saved.get(name)
            if isinstance(value, Tensor) and torch.float32 in (value.dtype, optimizer._state_dtype(param)):
                optimizer.state[param][name] = value.to(device=param.device, dtype=torch.float32, copy=True)
