"""How the native program spells autocast, scalers and parameters, for the torch and device it's meant for."""

from __future__ import annotations

from types import MappingProxyType
from typing import Mapping

import libcst as cst

from ..target import BFLOAT16, Target
from ..torch_names import TorchNames
from .index import code_of
from .levels import LossScale
from .problem import CannotFollow

AUTOCAST_ANY_DEVICE = (1, 10)
SCALER_ANY_DEVICE = (2, 3)
#: what Apex and GradScaler begin with; Apex never above its ceiling
INIT_SCALE = 2.0**16


class Spelling:
    """Builds the nodes of a native program."""

    def __init__(self, target: Target, torch: TorchNames) -> None:
        self.target = target
        self.torch = torch

    def check(self, node: cst.CSTNode) -> None:
        """Raise CannotFollow if the oldest torch lacks what the device needs."""
        version = ".".join(map(str, self.target.torch))
        if self.target.device_type == "cuda":
            return
        if self.target.torch < AUTOCAST_ANY_DEVICE:
            raise CannotFollow(f"torch {version} has autocast for cuda alone; raise --torch", node)
        if self.target.torch < SCALER_ANY_DEVICE and self.target.dtype != BFLOAT16:
            raise CannotFollow(f"torch {version} has a GradScaler for cuda alone; raise --torch", node)

    def autocast(self, enabled: cst.BaseExpression | None) -> cst.With:
        """Return ``with torch.autocast(…):`` around nothing yet."""
        device = repr(self.target.device_type).replace("'", '"')
        dtype = code_of(self.torch.expression(f"torch.{self.target.dtype}"))
        if self.target.torch < AUTOCAST_ANY_DEVICE:
            arguments = [] if self.target.dtype != BFLOAT16 else [f"dtype={dtype}"]
            name = "torch.cuda.amp.autocast"
        else:
            arguments, name = [device, f"dtype={dtype}"], "torch.autocast"
        if enabled is not None:
            arguments.append(f"enabled={code_of(enabled)}")
        call = cst.parse_expression(f"{code_of(self.torch.expression(name))}({', '.join(arguments)})")
        return cst.With(items=[cst.WithItem(call)], body=cst.IndentedBlock([]))

    def scaler(
        self,
        enabled: cst.BaseExpression | None,
        scale: LossScale | None = None,
        given: Mapping[str, cst.BaseExpression] = MappingProxyType({}),
    ) -> cst.BaseExpression:
        """Return ``torch.amp.GradScaler(…)``. ``given`` are arguments that the program sets itself."""
        if self.target.torch < SCALER_ANY_DEVICE:
            arguments, name = [], "torch.cuda.amp.GradScaler"
        else:
            arguments, name = [repr(self.target.device_type).replace("'", '"')], "torch.amp.GradScaler"
        arguments += [f"{name}={code_of(value)}" for name, value in given.items()]
        if "init_scale" in given:
            pass
        elif scale is not None and scale.static is not None:
            arguments.append(f"init_scale={scale.static!r}")
        elif scale is not None and scale.ceiling is not None and scale.ceiling < INIT_SCALE:
            arguments.append(f"init_scale={scale.ceiling!r}")
        if enabled is not None:
            arguments.append(f"enabled={code_of(enabled)}")
        return cst.parse_expression(f"{code_of(self.torch.expression(name))}({', '.join(arguments)})")


def statement(code: str) -> cst.BaseSmallStatement:
    """Return one small statement."""
    line = cst.parse_statement(code)
    assert isinstance(line, cst.SimpleStatementLine)
    return line.body[0]


def updates(scaler: str, scale: LossScale) -> tuple[cst.BaseSmallStatement, ...]:
    """Return what follows a step: ``scaler.update()``, and what keeps the scale where Apex kept it."""
    if scale.static is not None:
        return (statement(f"{scaler}.update({scale.static!r})"),)
    found = [statement(f"{scaler}.update()")]
    value = f"{scaler}.get_scale()"
    if scale.floor is not None:
        value = f"max({value}, {scale.floor!r})"
    if scale.ceiling is not None:
        value = f"min({value}, {scale.ceiling!r})"
    if scale.floor is not None or scale.ceiling is not None:
        found.append(statement(f"{scaler}.update({value})"))
    return tuple(found)


def parenthesized(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return ``node`` so that a method can be called on it."""
    if isinstance(node, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)) or node.lpar:
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
