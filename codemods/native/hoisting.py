"""Losses that are computed where they are passed on: whether they can be computed a statement earlier."""

from __future__ import annotations

from typing import Tuple

import libcst as cst

from .index import Index

#: the statement, and its argument that is computed before it
Hoisted = Tuple[cst.BaseSmallStatement, cst.BaseExpression]
_READS = (cst.Name, cst.BaseNumber, cst.SimpleString)


def hoistable(statement: cst.CSTNode, argument: cst.CSTNode, index: Index) -> Hoisted | None:
    """Return ``argument`` of the call that ``statement`` is, if nothing happens in it before that; else None."""
    arg = index.parent.get(argument)
    call = index.parent.get(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(call, cst.Call) or not isinstance(argument, cst.BaseExpression):
        return None
    if not isinstance(statement, cst.BaseSmallStatement) or not _is_that_call(statement, call, index):
        return None
    return (statement, argument) if _comes_first(call, arg, index) else None


def _is_that_call(statement: cst.BaseSmallStatement, call: cst.Call, index: Index) -> bool:
    """``f(loss)``, ``x = f(loss)``, ``return f(loss)``, ``total += f(loss)``, alone on a line."""
    line = index.parent.get(statement)
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return False
    if isinstance(statement, cst.AugAssign):
        return isinstance(statement.target, cst.Name) and statement.value is call
    return isinstance(statement, (cst.Expr, cst.Assign, cst.Return)) and statement.value is call


def _comes_first(call: cst.Call, arg: cst.CSTNode | None, index: Index) -> bool:
    """Return whether nothing is done before ``arg`` is computed: names are read, and that's all."""
    func = call.func
    while isinstance(func, cst.Attribute):
        func = func.value
    if not isinstance(func, cst.Name):
        return False
    before = call.args[: [each is arg for each in call.args].index(True)]
    binds = any(isinstance(node, cst.NamedExpr) for each in call.args for node in index.walk(each))
    return not binds and all(not each.star and isinstance(each.value, _READS) for each in before)
