"""The interface of 2018: ``handle = amp.init()``, ``handle.scale_loss(loss, optimizer)``, ``handle.wrap_optimizer``."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from .index import Index, code_of
from .known_calls import HANDLE
from .objects import Objects
from .problem import CannotFollow
from .signatures import call_argument
from .solve import Solved
from .values import Apex, Value

#: methods of the handle that a native program needs no word for
_IDLE = ("_clear_cache",)


@dataclass(frozen=True)
class Wrapped:
    """``optimizer = handle.wrap_optimizer(optimizer)``: it has a loss scale of its own, for each of its losses."""

    call: cst.Call
    optimizer: cst.BaseExpression
    value: Value
    #: stands for its loss scaler; None where it has several
    loss_id: int | None


@dataclass(frozen=True)
class Handles:
    """What a file does with handles. ``idle`` are calls that go."""

    wrapped: tuple[Wrapped, ...] = ()
    idle: tuple[cst.Call, ...] = ()

    def owner(self, values: set[Value]) -> Wrapped | None:
        """Return the wrapped optimizer among ``values``."""
        return next((each for each in self.wrapped if each.value in values), None)


def find_handles(index: Index, solved: Solved, objects: Objects, problems: list[CannotFollow]) -> Handles:
    """Return the optimizers that a handle wraps. What else is done with a handle goes to ``problems``."""
    wrapped: list[Wrapped] = []
    idle: list[cst.Call] = []
    for node in index.nodes:
        if not isinstance(node, (cst.Name, cst.Attribute)) or not _is_handle(node, solved):
            continue
        part = index.parent.get(node)
        if isinstance(part, (cst.AssignTarget, cst.Attribute)) and not (
            isinstance(part, cst.Attribute) and part.value is node
        ):
            continue
        call = index.parent.get(part) if isinstance(part, cst.Attribute) else None
        name = part.attr.value if isinstance(part, cst.Attribute) else ""
        try:
            if not isinstance(call, cst.Call) or call.func is not part:
                raise CannotFollow(f"what is done with `{code_of(node)}`, the handle of amp, can't be followed", node)
            if name == "wrap_optimizer":
                wrapped.append(_wrapped(call, len(wrapped), objects))
            elif name in _IDLE and isinstance(index.parent.get(call), cst.Expr):
                idle.append(call)
            elif name != "scale_loss":
                raise CannotFollow(f"`{name}` of amp's handle has no native counterpart", node)
        except CannotFollow as problem:
            problems.append(problem)
    return Handles(tuple(wrapped), tuple(idle))


def _is_handle(node: cst.BaseExpression, solved: Solved) -> bool:
    return any(isinstance(value, Apex) and value.path == HANDLE for value in solved.of(node))


def _wrapped(call: cst.Call, number: int, objects: Objects) -> Wrapped:
    optimizer = call_argument(call, 0, "optimizer")
    losses = call_argument(call, 1, "num_loss")
    if optimizer is None:
        raise CannotFollow("which optimizer the handle wraps can't be seen", call)
    is_one = losses is None or (isinstance(losses, cst.Integer) and losses.value == "1")
    return Wrapped(call, optimizer, objects.one(optimizer).value, -1 - number if is_one else None)
