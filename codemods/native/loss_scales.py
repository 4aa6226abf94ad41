"""Reads of ``_amp_state.loss_scalers[0].loss_scale()``, and what programs set there right after ``amp.initialize``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Mapping

import libcst as cst

from .index import Index, code_of
from .problem import CannotFollow
from .solve import Solved
from .values import Apex

if TYPE_CHECKING:
    from .loop import Loop

_SCALERS = {"amp._amp_state.loss_scalers", "amp._amp_state._amp_state.loss_scalers"}
_READ = "loss_scale"
#: what Apex keeps on a loss scaler (apex/amp/scaler.py) → the argument of GradScaler
_ARGUMENTS: Mapping[str, str] = {"_loss_scale": "init_scale", "_scale_seq_len": "growth_interval"}
_PURE = (cst.Name, cst.Attribute, cst.Integer, cst.Float, cst.BinaryOperation, cst.UnaryOperation)


@dataclass(frozen=True)
class ScaleRead:
    """``_amp_state.loss_scalers[number].loss_scale()``, or ``…._loss_scale``. ``node`` is the whole expression."""

    node: cst.BaseExpression
    function: cst.FunctionDef | None
    number: int


@dataclass(frozen=True)
class ScaleWrite:
    """``_amp_state.loss_scalers[number]._loss_scale = value``. ``argument`` is that of GradScaler."""

    node: cst.Assign
    function: cst.FunctionDef | None
    number: int
    argument: str
    value: cst.BaseExpression


def read_use(node: cst.Subscript, index: Index, solved: Solved) -> ScaleRead | ScaleWrite | None:
    """Return the use of a loss scaler that ``node``, an element of ``loss_scalers``, is part of.

    Raises CannotFollow for one that native AMP has no word for.
    """
    if not any(isinstance(v, Apex) and v.path in _SCALERS for v in solved.of(node.value)):
        return None
    part = index.parent.get(node)
    where = node.slice[0].slice if len(node.slice) == 1 else None
    number = where.value if isinstance(where, cst.Index) else None
    if not isinstance(part, cst.Attribute) or not isinstance(number, cst.Integer):
        raise CannotFollow(f"`{code_of(node)}` is used in a way that GradScaler lacks", node)
    outer, name = index.parent.get(part), part.attr.value
    function, place = index.function(node), int(number.value, 0)
    if name == _READ and isinstance(outer, cst.Call) and outer.func is part:
        return ScaleRead(outer, function, place)
    if isinstance(outer, cst.AssignTarget):
        line = index.parent[outer]
        if isinstance(line, cst.Assign) and len(line.targets) == 1 and name in _ARGUMENTS:
            return ScaleWrite(line, function, place, _ARGUMENTS[name], line.value)
    elif name == "_loss_scale" and not isinstance(outer, (cst.AugAssign, cst.Del)):
        return ScaleRead(part, function, place)
    raise CannotFollow(f"the program uses `{name}` of Apex's loss scaler, which GradScaler lacks", node, 6)


def scaler_number(use: ScaleRead | ScaleWrite, loop: Loop, scaler_of: Mapping[object, int]) -> int:
    """Return the number of the native scaler that stands for the loss scaler of ``use``."""
    for block in loop.blocks:
        if block.loss_id == use.number:
            return scaler_of[block.entities[0].value]
    raise CannotFollow(f"no loss has the loss id {use.number}", use.node, 1)


def check_write(write: ScaleWrite, initialize: cst.CSTNode, index: Index) -> None:
    """A new scale is set in the block of ``amp.initialize``, behind it: then GradScaler can begin with it."""
    here, there = index.line(write.node), index.line(initialize)
    if index.block(here) is not index.block(there) or not index.before(there, here):
        raise CannotFollow("the loss scale is set apart from `amp.initialize`", write.node, 6)
    if not all(isinstance(each, _PURE) for each in _expressions(write.value)):
        raise CannotFollow(f"the loss scale is set to `{code_of(write.value)}`, which is computed", write.node, 6)


def _expressions(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    found, waiting = [], [node]
    while waiting:
        each = waiting.pop()
        found.append(each)
        waiting += [child for child in each.children if isinstance(child, cst.BaseExpression)]
    return found
