"""The plain torch calls behind ``optimizer.backward(loss)`` and ``optimizer.clip_master_grads(1.0)``."""

from __future__ import annotations

import libcst as cst

from .index import code_of
from .signatures import call_argument
from .sites import ScaleLoss


def plain_backward(site: ScaleLoss, receiver: str) -> cst.BaseExpression:
    """Return ``receiver.backward(…)``; masters are up to date natively, so ``update_master_grads=`` goes."""
    kept = call_argument(site.call, 2, "retain_graph")
    return cst.parse_expression(f"{receiver}.backward({'' if kept is None else f'retain_graph={code_of(kept)}'})")


def plain_clip(call: cst.Call, function: str, parameters: str) -> cst.BaseExpression:
    """Return ``clip_grad_norm_(parameters, …)``."""
    arguments = [cst.Module([]).code_for_node(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for arg in call.args]
    return cst.parse_expression(f"{function}({', '.join([parameters, *arguments])})")
