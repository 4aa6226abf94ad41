"""Learning-rate schedules: where they advance, and how they wait for a step that was skipped."""

from __future__ import annotations

from typing import Iterator

import libcst as cst

from ..tree import walk
from .draft import Draft
from .index import Index
from .spelling import statement

_CODE = "AMP194"


def schedule_steps(root: cst.CSTNode) -> Iterator[cst.Call]:
    """Yield the calls of a schedule's ``step``."""
    for node in walk(root):
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "step":
            receiver = node.func.value
            name = receiver.attr.value if isinstance(receiver, cst.Attribute) else getattr(receiver, "value", "")
            if isinstance(name, str) and ("sched" in name.lower() or name.lower().startswith("lr")):
                yield node


def guard_schedules(step: cst.CSTNode, scaler: str, name: str, index: Index, draft: Draft) -> None:
    """Let the schedules that advance behind ``step``, in its block, wait where it was skipped: the scale fell then."""
    line = index.line(step)
    lines = list(index.block(line).body)
    if line not in lines:
        return
    guarded = [
        each
        for later in lines[lines.index(line) + 1 :]
        if isinstance(later, cst.SimpleStatementLine) and len(later.body) == 1
        for each in later.body
        if isinstance(each, cst.Expr) and any(call is each.value for call in schedule_steps(each))
    ]
    if not guarded:
        return
    draft.before(_CODE, step, statement(f"{name} = {scaler}.get_scale()"))
    for each in guarded:
        test = cst.parse_expression(f"{scaler}.get_scale() >= {name}")
        line = index.line(each)
        assert isinstance(line, cst.BaseStatement)
        draft.wrap(_CODE, line, line, cst.If(test, cst.IndentedBlock([])))
