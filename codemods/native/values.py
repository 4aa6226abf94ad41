"""What an expression can stand for: functions, classes, parts of Apex, and objects known by where they are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple, Union

import libcst as cst

#: what a value can be stored under: ("name", scope, name), ("field", class or None, attribute)
Key = Tuple[object, ...]


@dataclass(frozen=True)
class Apex:
    """A part of Apex, by its path below ``apex``: ``"amp.scale_loss"``."""

    path: str


@dataclass(frozen=True)
class Imported:
    """Something imported from anywhere else, by its dotted name: ``"torch.optim.Adam"``."""

    path: str


@dataclass(frozen=True)
class FunctionValue:
    """A ``def`` of this file; ``bound`` if the first parameter is filled already."""

    node: cst.FunctionDef
    bound: bool = False


@dataclass(frozen=True)
class ClassValue:
    """A class of this file."""

    node: cst.ClassDef


@dataclass(frozen=True)
class Instance:
    """An object of a class of this file, by the call that makes it; None for ``self``. All of a class share fields."""

    node: cst.ClassDef
    call: cst.Call | None = None


@dataclass(frozen=True)
class Made:
    """What a call returned that can't be followed: an optimizer, a model, a tensor … known by the call."""

    call: cst.Call


@dataclass(frozen=True)
class Several:
    """A tuple, list or dict display, or what ``amp.initialize`` returned: its elements are evaluated on demand."""

    node: cst.BaseExpression


@dataclass(frozen=True)
class Partial:
    """``functools.partial(f, …)``."""

    call: cst.Call


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function that nothing in this file calls."""

    node: cst.Param


@dataclass(frozen=True)
class Field:
    """An attribute that nothing in this file stores."""

    key: Key


Value = Union[Apex, Imported, FunctionValue, ClassValue, Instance, Made, Several, Partial, Parameter, Field]
#: objects that can be an optimizer or a model
OBJECTS = (Made, Parameter, Field, Instance)


def made_by(call: cst.Call, value: Value) -> Value:
    """Return ``value``, a new object, as what ``call`` has made: two calls of a helper make two objects."""
    if isinstance(value, Instance):
        return Instance(value.node, call)
    return Made(call) if isinstance(value, Made) else value
