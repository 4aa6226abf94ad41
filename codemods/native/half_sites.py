"""Loops with a half model: ``FP16_Optimizer(optimizer)``, ``optimizer.backward(loss)``, ``model.half()``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Collection, Iterator, Mapping

import libcst as cst

from .index import Index, code_of
from .known_calls import HALF_MODELS, HALF_OPTIMIZERS
from .objects import Objects
from .problem import CannotFollow
from .signatures import call_argument
from .solve import Solved
from .values import Apex, Value

#: Apex's argument in ``dynamic_loss_args`` → GradScaler's
_ARGUMENTS: Mapping[str, str] = {
    "init_scale": "init_scale",
    "scale_window": "growth_interval",
    "scale_factor": "growth_factor",
}
#: what else FP16_Optimizer has, and a torch optimizer lacks
_LACKING = {
    "overflow",
    "fp16_groups",
    "fp32_from_fp16_groups",
    "fp32_from_fp32_groups",
    "inspect_master_grad_data",
    "loss_scaler",
    "first_closure_call_this_step",
}


@dataclass
class HalfUses:
    """Everything that goes or changes with the half model of a file.

    Args:
        wrapped: the calls of FP16_Optimizer.
        clips: calls of ``clip_master_grads``.
        idle: calls of ``update_master_grads``: natively gradients are masters' anyway.
        halves: expressions that make a model or tensor half → what they make half.
    """

    wrapped: list[cst.Call] = field(default_factory=list)
    clips: list[cst.Call] = field(default_factory=list)
    idle: list[cst.Call] = field(default_factory=list)
    halves: dict[cst.Call, cst.BaseExpression] = field(default_factory=dict)


def find_half_uses(index: Index, solved: Solved, objects: Objects, problems: list[CannotFollow]) -> HalfUses | None:
    """Return the uses of a file; None if it has no FP16_Optimizer."""
    calls = [node for node in index.nodes if isinstance(node, cst.Call)]
    found = HalfUses([call for call in calls if _apex_path(call, solved) in HALF_OPTIMIZERS])
    if not found.wrapped:
        return None
    ours = {value for call in found.wrapped for value in objects.values(call)}
    for call in calls:
        name = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        if name in ("clip_master_grads", "update_master_grads") and objects.values(call.func.value) & ours:  # type: ignore[attr-defined]
            (found.clips if name == "clip_master_grads" else found.idle).append(call)
        made_half = _made_half(call, name, solved)
        if made_half is not None:
            found.halves[call] = made_half
    problems.extend(_lacking(index, objects, ours, found.halves))
    return found


def _apex_path(call: cst.Call, solved: Solved) -> str:
    return next((f"apex.{v.path}" for v in solved.of(call.func) if isinstance(v, Apex)), "")


def _made_half(call: cst.Call, name: str, solved: Solved) -> cst.BaseExpression | None:
    """Return what ``call`` makes half: ``x.half()``, ``network_to_half(model)``."""
    if name == "half" and not call.args and isinstance(call.func, cst.Attribute):
        return call.func.value
    if _apex_path(call, solved) in HALF_MODELS:
        return call_argument(call, 0, "network")
    return None


def _lacking(index: Index, objects: Objects, ours: set[Value], halves: Collection[cst.Call]) -> Iterator[CannotFollow]:
    """Yield what a native program has no word for: Apex's own attributes, and tensors made half in other ways."""
    for node in index.nodes:
        if not isinstance(node, cst.Attribute) or any(each in halves for each in index.ancestors(node)):
            continue
        name = node.attr.value
        if name in _LACKING and objects.values(node.value) & ours:
            yield CannotFollow(f"`{code_of(node)}` is FP16_Optimizer's alone", node)
        if name in ("HalfTensor", "float16") or (name == "half" and not _is_called(node, index)):
            yield CannotFollow(f"tensors are made half by `{code_of(node)}`", node, 25)


def _is_called(node: cst.Attribute, index: Index) -> bool:
    parent = index.parent.get(node)
    return isinstance(parent, cst.Call) and parent.func is node


def dynamic_arguments(call: cst.Call) -> dict[str, cst.BaseExpression]:
    """Return what ``dynamic_loss_args={…}`` says, as arguments of GradScaler.

    Raises CannotFollow for what GradScaler lacks, and for a dict that isn't written out.
    """
    given = call_argument(call, 3, "dynamic_loss_args")
    if given is None or (isinstance(given, cst.Name) and given.value == "None"):
        return {}
    if not isinstance(given, cst.Dict):
        raise CannotFollow("`dynamic_loss_args` is computed", given, 6)
    found: dict[str, cst.BaseExpression] = {}
    for element in given.elements:
        key = element.key if isinstance(element, cst.DictElement) else None
        name = key.evaluated_value if isinstance(key, cst.SimpleString) else None
        if name not in _ARGUMENTS:
            raise CannotFollow(f"`dynamic_loss_args` has {name!r}, which GradScaler lacks", given, 6)
        found[_ARGUMENTS[str(name)]] = element.value
    factor = found.get("growth_factor")
    if factor is not None:
        found["backoff_factor"] = cst.parse_expression(f"1 / {code_of(factor)}")
    return found
