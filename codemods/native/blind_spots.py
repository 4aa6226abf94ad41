"""What the run over all paths can't see: code that no call names, and several objects that it takes for one."""

from __future__ import annotations

import libcst as cst

from .decision import Facts
from .decorators import runs_as_written
from .freezing import check_freezing
from .index import code_of
from .loop import Loop
from .problem import CannotFollow
from .states import Event
from .values import Apex, Imported, Instance, Made

_RUN_BY_A_CALL = {"__init__", "__call__"}


def check_blind_spots(loop: Loop, facts: Facts) -> None:
    """Raise CannotFollow for code that brings events about where no path shows it."""
    for node in facts.index.nodes:
        if isinstance(node, cst.FunctionDef) and facts.kinds.of_function(node):
            _check_function(node, facts)
        elif isinstance(node, cst.Call) and _may_run_anything(node, facts):
            raise CannotFollow("which function runs here can't be seen, and it may read gradients", node, 15)
        elif isinstance(node, cst.Match) and _matters(node, loop, facts):
            raise CannotFollow("what happens in the cases of a `match` can't be followed", node, 3)
        elif isinstance(node, cst.Lambda) and facts.kinds.of(node.body) and not _asks_for_none(node.body):
            raise CannotFollow("a lambda steps, or reads or clears gradients", node, 26)
    for use in facts.index.nodes:
        if isinstance(use, (cst.Name, cst.Attribute)) and _is_ours(use, loop, facts) and not _is_understood(use, facts):
            raise CannotFollow("what is done with the optimizer here can't be followed", use, 8)
    check_freezing(loop, facts)
    for optimizer in loop.optimizers:
        for call in facts.events.reach.makers(optimizer):
            _check_made_once(call, facts)


def _may_run_anything(call: cst.Call, facts: Facts) -> bool:
    """Return whether an unresolved call may run a method of this file that brings events about."""
    if any(True for _ in facts.solved.functions_of(call)):
        return False
    func = call.func
    if isinstance(func, cst.Call):
        return isinstance(func.func, cst.Name) and func.func.value == "getattr" and not _asks_library(func, facts)
    if not isinstance(func, cst.Attribute):
        return False
    name = func.attr.value
    if any(isinstance(value, (Apex, Imported)) for value in facts.solved.of(func)):
        return False
    if name in ("step", "zero_grad", "backward") or name.startswith("__"):
        return False  # known as what they are in torch and in Python
    values = facts.events.objects.values(func.value)
    if values & facts.slices.models or any(isinstance(each, Instance) for each in values):
        return False
    return any(
        method is not None and bool(facts.kinds.of_function(method))
        for each in facts.solved.classes.all
        for method in [facts.solved.classes.method(each, name)]
    )


def _matters(node: cst.Match, loop: Loop, facts: Facts) -> bool:
    """Return whether a ``match`` brings events about, initializes amp, or leaves a function or loop that does."""
    if facts.kinds.of(node) or any(facts.index.holds(node, init.call) for init in loop.initialize):
        return True
    function = facts.index.function(node)
    leaves = any(isinstance(each, (cst.Continue, cst.Break, cst.Return)) for each in facts.index.walk(node))
    return leaves and bool(facts.kinds.of(facts.index.module if function is None else function.body))


def _asks_for_none(node: cst.BaseExpression) -> bool:
    """``p.grad is not None``: the same whatever the scale."""
    if not isinstance(node, cst.Comparison) or len(node.comparisons) != 1:
        return False
    target = node.comparisons[0]
    is_none = isinstance(target.comparator, cst.Name) and target.comparator.value == "None"
    return is_none and isinstance(target.operator, (cst.Is, cst.IsNot)) and not isinstance(node.left, cst.Call)


def _asks_library(call: cst.Call, facts: Facts) -> bool:
    """``getattr(torch.optim, name)``: a part of a library, which knows no function of this file."""
    values = facts.solved.of(call.args[0].value) if call.args else frozenset()
    return bool(values) and all(isinstance(value, Imported) for value in values)


def _is_ours(node: cst.BaseExpression, loop: Loop, facts: Facts) -> bool:
    ours = {each.value for each in loop.optimizers}
    return bool(facts.events.objects.values(node) & ours)


def _is_understood(use: cst.CSTNode, facts: Facts) -> bool:
    """Return whether ``use`` of an optimizer is a method call, a binding, or an argument that is followed."""
    parent = facts.index.parent.get(use)
    if isinstance(parent, cst.Attribute):
        if parent.value is not use:
            return True
        outer = facts.index.parent.get(parent)
        is_called = isinstance(outer, cst.Call) and outer.func is parent
        return is_called or parent.attr.value != "step"
    if isinstance(parent, cst.Arg):
        return _is_understood_argument(parent, facts)
    if isinstance(parent, (cst.Element, cst.DictElement)):
        around = facts.index.parent.get(facts.index.parent[parent])
        while isinstance(around, cst.Element):
            around = facts.index.parent.get(facts.index.parent[around])
        if isinstance(around, (cst.AssignTarget, cst.Assign, cst.Return, cst.Del)):
            return isinstance(parent, cst.Element)
        return isinstance(around, cst.Arg) and _is_apex_call(facts.index.parent[around], facts)
    return not isinstance(parent, (cst.Lambda, cst.Subscript))


def _is_understood_argument(argument: cst.Arg, facts: Facts) -> bool:
    call = facts.index.parent[argument]
    if not isinstance(call, cst.Call):
        return True
    if _is_apex_call(call, facts) or any(True for _ in facts.solved.functions_of(call)):
        return True
    name = call.func.attr.value if isinstance(call.func, cst.Attribute) else getattr(call.func, "value", "")
    return name not in ("getattr", "append", "extend", "insert", "setattr", "add", "setdefault", "update")


def _is_apex_call(node: cst.CSTNode, facts: Facts) -> bool:
    return isinstance(node, cst.Call) and any(isinstance(value, Apex) for value in facts.solved.of(node.func))


def _check_function(function: cst.FunctionDef, facts: Facts) -> None:
    name = function.name.value
    whole = {Event.SCALED_BACKWARD, Event.STEP} <= facts.kinds.of_function(function)
    if function in facts.solved.handed_on and not whole:
        raise CannotFollow(f"`{name}` is handed on as a value, so when it runs can't be seen", function, 26)
    for decorator in function.decorators:
        if not runs_as_written(decorator, facts.solved):
            raise CannotFollow(f"`{name}` is decorated, so what runs when it's called can't be seen", function, 26)
    if name.startswith("__") and name.endswith("__") and name not in _RUN_BY_A_CALL:
        raise CannotFollow(f"`{name}` steps, or reads or clears gradients, and Python runs it by itself", function, 26)
    for node in facts.index.walk(function.body):
        if isinstance(node, (cst.Yield, cst.Await)) and facts.index.function(node) is function:
            raise CannotFollow(f"`{name}` stops in the middle (`yield` or `await`)", function, 26)


def _check_made_once(call: cst.Call, facts: Facts) -> None:
    """One place in the code may make several optimizers: each call of its function makes one."""
    function = facts.index.function(call)
    seen: set[cst.FunctionDef] = set()
    while function is not None and function not in seen:
        seen.add(function)
        owner = facts.index.class_of(function)
        if owner is not None:
            family = facts.solved.classes.family(owner)
            sites = [
                c for c, node in facts.solved.made_instances.items() if facts.solved.classes.family(node) is family
            ]
            _check_sites(sites, f"several objects of `{owner.name.value}` are made, each with an optimizer", facts)
        if owner is None or function.name.value != "__init__":
            sites = list(facts.solved.calls.get(function, ()))
            returned = [each for each in sites if Made(each) not in facts.solved.of(each)]
            if owner is None:
                _check_sites(returned, f"`{function.name.value}` makes an optimizer each time it's called", facts)
        callers = {facts.index.function(site) for site in sites}
        function = callers.pop() if len(callers) == 1 else None


def _check_sites(sites: list[cst.Call], why: str, facts: Facts) -> None:
    """Several calls are one object in turn if all bind the same name."""
    targets: set[str] = set()
    for site in sites:
        line = facts.index.statement(site)
        if isinstance(line, cst.Assign) and line.value is site and len(line.targets) == 1:
            targets.add(code_of(line.targets[0].target))
        else:
            targets.add(str(id(site)))
        if _is_collected(site, facts):
            raise CannotFollow(why, site, 26)
    if len(targets) > 1:
        raise CannotFollow(why, sites[1], 26)


def _is_collected(site: cst.Call, facts: Facts) -> bool:
    """Return whether what a call makes goes into a list or the like."""
    for outer in facts.index.ancestors(site):
        if isinstance(outer, (cst.BaseComp, cst.List, cst.Dict, cst.Tuple)):
            return True
        if isinstance(outer, cst.Arg):
            call = facts.index.parent[outer]
            name = call.func.attr.value if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute) else ""
            return name in ("append", "extend", "insert", "setdefault", "add")
        if isinstance(outer, (cst.BaseStatement, cst.BaseSmallStatement)):
            return False
    return False
