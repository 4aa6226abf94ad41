"""Shapes of loops and statements that the run over all paths takes as a whole."""

from __future__ import annotations

import libcst as cst

from ..tree import dotted_name, walk


def runs_at_least_once(loop: cst.For | cst.While) -> bool:
    """Return whether a loop is over micro-batches: a range, or the parts that a batch was split into."""
    source = loop.iter if isinstance(loop, cst.For) else None
    while (
        isinstance(source, cst.Call)
        and dotted_name(source.func) in ("enumerate", "zip", "reversed", "tqdm")
        and source.args
    ):
        source = source.args[0].value
    if not isinstance(source, cst.Call):
        return False
    name = source.func.attr.value if isinstance(source.func, cst.Attribute) else dotted_name(source.func)
    if name == "range":
        counts = [arg.value.value for arg in source.args if isinstance(arg.value, cst.Integer)]
        return len(counts) == len(source.args) == 1 and counts[0] != "0"
    return name in ("chunk", "tensor_split")


def clears_one(node: cst.Assign) -> bool:
    """``p.grad = None``"""
    target = node.targets[0].target
    return (
        isinstance(target, cst.Attribute)
        and target.attr.value == "grad"
        and isinstance(node.value, cst.Name)
        and node.value.value == "None"
    )


def only_clears(loop: cst.For) -> bool:
    """A loop whose whole body is ``p.grad = None`` or ``p.grad.zero_()``, perhaps under ``if p.grad is not None``."""
    return all(_clears(line) for line in loop.body.body)


def _clears(line: cst.CSTNode) -> bool:
    if isinstance(line, cst.If):
        asks = any(isinstance(each, cst.Attribute) and each.attr.value == "grad" for each in walk(line.test))
        return asks and line.orelse is None and all(_clears(each) for each in line.body.body)
    if isinstance(line, cst.For):
        return only_clears(line)
    if isinstance(line, cst.SimpleStatementLine):
        return all(_clears(each) for each in line.body)
    if isinstance(line, cst.Assign):
        return clears_one(line)
    if isinstance(line, cst.Expr) and isinstance(line.value, cst.Call):
        return dotted_name(line.value.func).endswith((".grad.zero_", ".grad.detach_", ".grad.data.zero_"))
    return False


def is_no_grad(node: cst.With) -> bool:
    """Return whether a ``with`` turns gradients off."""
    return any(is_no_grad_call(item.item) for item in node.items)


def is_no_grad_call(node: cst.CSTNode) -> bool:
    """``torch.no_grad()``, ``torch.inference_mode()``, with any spelling of torch."""
    func = node.func if isinstance(node, cst.Call) else node
    name = func.attr.value if isinstance(func, cst.Attribute) else getattr(func, "value", "")
    return name in ("no_grad", "inference_mode")
