"""Whether what switches amp on stays as it is after ``amp.initialize`` has run."""

from __future__ import annotations

from typing import Iterator

import libcst as cst

from ..tree import walk
from .guards import Guard
from .index import Index, code_of
from .levels import OptLevel
from .options import text_of
from .problem import CannotFollow
from .sites import Initialize
from .solve import Solved

_WRITES = {"update", "pop", "setdefault", "clear", "__setitem__"}


def check_flags(init: Initialize, guard: Guard, level: OptLevel, solved: Solved) -> None:
    """Raise CannotFollow where a flag that guards ``init`` is bound anew later: the guards would part."""
    tests = [test for test, _ in guard.parts] + ([level.expression] if level.expression is not None else [])
    for test in tests:
        _check_containers(test, solved)
        for read in walk(test):
            if not isinstance(read, (cst.Name, cst.Attribute)):
                continue
            for store in _stores(read, solved):
                if not _is_before(store, init, solved):
                    raise CannotFollow("the flag that guards amp is bound anew after amp is initialized", store, 27)


def _check_containers(test: cst.BaseExpression, solved: Solved) -> None:
    """A flag in a dict, or on an object that is written by name, can change where no assignment shows it."""
    module = solved.index.module
    bases = {code_of(each.value) for each in walk(test) if isinstance(each, cst.Subscript)}
    bases |= {code_of(each.func.value) for each in walk(test) if _is_get(each)}  # type: ignore[attr-defined]
    keys = {_key(each) for each in walk(test) if isinstance(each, cst.Subscript)}
    keys |= {text_of(each.args[0].value) for each in walk(test) if _is_get(each) and each.args}  # type: ignore[attr-defined]
    keys.discard(None)
    has_attribute = any(isinstance(each, cst.Attribute) for each in walk(test))
    for node in walk(module):
        target = node.target if isinstance(node, (cst.AssignTarget, cst.AugAssign)) else None
        if isinstance(target, cst.Subscript) and (code_of(target.value) in bases or _key(target) in keys):
            raise CannotFollow("the flag that guards amp is in a dict that is written to", target, 27)
        func = node.func if isinstance(node, cst.Call) else None
        if isinstance(func, cst.Attribute) and func.attr.value in _WRITES and code_of(func.value) in bases:
            raise CannotFollow("the flag that guards amp is in a dict that is written to", node, 27)
        if isinstance(func, cst.Attribute) and func.attr.value == "update" and keys & _updated(node):
            raise CannotFollow("the flag that guards amp is in a dict that is written to", node, 27)
        by_name = isinstance(func, cst.Name) and func.value in ("setattr", "vars")
        if has_attribute and (by_name or (isinstance(node, cst.Attribute) and node.attr.value == "__dict__")):
            raise CannotFollow("attributes are written by name, and amp's flag may be one of them", node, 27)


def _key(node: cst.Subscript) -> str | None:
    where = node.slice[0].slice if len(node.slice) == 1 else None
    return text_of(where.value) if isinstance(where, cst.Index) else None


def _updated(call: cst.CSTNode) -> set[str | None]:
    """Return the keys that ``d.update({…})`` and ``d.update(key=…)`` write."""
    found: set[str | None] = set()
    for arg in call.args if isinstance(call, cst.Call) else ():
        if arg.keyword is not None:
            found.add(arg.keyword.value)
        if isinstance(arg.value, cst.Dict):
            found |= {text_of(each.key) for each in arg.value.elements if isinstance(each, cst.DictElement)}
    return found


def _is_get(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "get"


def _stores(read: cst.Name | cst.Attribute, solved: Solved) -> Iterator[cst.CSTNode]:
    """Yield the targets that bind what ``read`` reads."""
    index = solved.index
    if isinstance(read, cst.Name):
        if isinstance(index.parent.get(read), cst.Attribute) and index.parent[read].attr is read:  # type: ignore[attr-defined]
            return
        scope = index.scope(read)
        for binder in solved.names.binders(read.value, scope):
            if isinstance(binder, cst.Name):
                yield binder
        return
    keys = set(solved.keys(read))
    for node in index.nodes:
        target = node.target if isinstance(node, (cst.AssignTarget, cst.AugAssign, cst.AnnAssign)) else None
        if not isinstance(target, cst.Attribute) or target.attr.value != read.attr.value:
            continue
        if keys & set(solved.keys(target)):
            yield target


def _is_before(store: cst.CSTNode, init: Initialize, solved: Solved) -> bool:
    """Return whether ``store`` surely runs before ``init``: in a constructor, above it, or above what calls it."""
    index: Index = solved.index
    function = index.function(store)
    if function is not None and function.name.value == "__init__" and function is not init.function:
        return True
    at: cst.CSTNode = init.statement
    around = init.function
    seen: set[object] = set()
    while True:
        if function is around:
            return index.before(store, at) and not _shares_a_loop(store, at, index)
        if around is None or around in seen:
            return False
        seen.add(around)
        calls = solved.calls.get(around, set())
        if len(calls) != 1:
            # several calls: only what stands above all of them, in one function, counts
            owners = {index.function(call) for call in calls}
            if owners != {function}:
                return False
            return all(index.before(store, call) and not _shares_a_loop(store, call, index) for call in calls)
        at = next(iter(calls))
        around = index.function(at)


def _shares_a_loop(first: cst.CSTNode, second: cst.CSTNode, index: Index) -> bool:
    loops = {outer for outer in index.ancestors(first) if isinstance(outer, (cst.For, cst.While))}
    return any(outer in loops for outer in index.ancestors(second))
