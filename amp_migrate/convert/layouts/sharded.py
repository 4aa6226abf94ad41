"""States of which a file holds only one process's part: told apart, and refused with the reason."""

from __future__ import annotations

from typing import Any

from ..errors import CannotConvert
from ..records import PickledObject
from .editing import Edits, Spot, Tree
from .kinds import is_optimizer_state
from .layout import Layout, Work

_ADVICE = "Gather it where it was trained (its state_dict on all ranks), then convert the whole."
#: keys of DeepSpeed's ZeRO optimizers
_ZERO = ("single_partition_of_fp32_groups", "base_optimizer_state", "partition_count", "zero_stage")


def _refuse(tree: Tree, work: Work) -> Edits:
    for spot in tree.spots:
        reason = _reason(spot)
        if reason:
            raise CannotConvert(f"{spot.place or 'the file'} {reason}. {_ADVICE}")
    return {}


def _reason(spot: Spot) -> str:
    node = spot.node
    if isinstance(node, PickledObject):
        return "is one process's part of a ShardedTensor" if node.cls.name == "ShardedTensor" else ""
    if not isinstance(node, dict):
        return ""
    zero = [key for key in _ZERO if key in node]
    if len(zero) > 1 or _ZERO[0] in zero:
        return f"is one process's part of a ZeRO optimizer ({', '.join(zero)})"
    return _reason_of_optimizer(node) if is_optimizer_state(node) else ""


def _reason_of_optimizer(state: dict[str, Any]) -> str:
    if "buckets" in state or "buckets" in state["state"]:
        return "is the state of a distributed fused optimizer, in buckets over all processes"
    groups = state["param_groups"]
    if groups and all(set(group) == {"params"} for group in groups):
        return "has groups with nothing but parameters: the shell of a distributed fused optimizer's sharded state"
    return ""


SHARDED = Layout(
    name="sharded optimizer state",
    writer="apex.contrib.optimizers.DistributedFusedAdam, NeMo, DeepSpeed ZeRO",
    years="2020 to today",
    source="apex/contrib/optimizers/distributed_fused_adam.py; deepspeed/runtime/zero/stage_1_and_2.py (state_dict)",
    convert=_refuse,
)
