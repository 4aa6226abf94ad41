"""Parameters that are frozen while amp is on: a step may then be without any gradient, which GradScaler refuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator

import libcst as cst

from .decision import Facts
from .loop import Loop
from .problem import CannotFollow
from .values import Value


@dataclass(frozen=True)
class Toggle:
    """A statement that freezes or unfreezes models. ``enables`` is None where that can't be seen."""

    node: cst.CSTNode
    models: frozenset[Value]
    enables: bool | None


def check_freezing(loop: Loop, facts: Facts) -> None:
    """Raise CannotFollow unless each backward of an optimizer surely finds its parameters unfrozen.

    That is shown where the last toggle of its models above the backward, in the blocks around it, unfreezes them.
    """
    toggles = [each for each in _toggles(facts) if not _runs_before(each.node, loop, facts)]
    for toggle in toggles:
        for block in loop.blocks if toggle.enables is not True else ():
            for optimizer in block.entities:
                mine = facts.events.reach.models_of(optimizer)
                concerned = not mine or not toggle.models or bool(mine & toggle.models)
                if concerned and not _is_unfrozen(block.block, mine, toggles, facts, ()):
                    why = "parameters may be frozen while amp is on, and a step be without gradients"
                    raise CannotFollow(why, toggle.node, 5)


def _is_unfrozen(
    line: cst.CSTNode,
    mine: frozenset[Value],
    toggles: list[Toggle],
    facts: Facts,
    path: tuple[cst.CSTNode, ...],
) -> bool:
    while True:
        lines = list(facts.index.block(line).body)
        for before in reversed(lines[: lines.index(line)] if line in lines else []):
            for toggle in toggles:
                if facts.index.holds(before, toggle.node) and mine & toggle.models:
                    return toggle.enables is True and isinstance(before, cst.SimpleStatementLine)
        outer = next((n for n in facts.index.ancestors(line) if isinstance(n, cst.BaseCompoundStatement)), None)
        if isinstance(outer, cst.FunctionDef):
            return outer not in path and _is_unfrozen_in_callers(outer, mine, toggles, facts, (*path, outer))
        if outer is None or isinstance(outer, cst.ClassDef):
            return False
        line = outer


def _is_unfrozen_in_callers(
    function: cst.FunctionDef,
    mine: frozenset[Value],
    toggles: list[Toggle],
    facts: Facts,
    path: tuple[cst.CSTNode, ...],
) -> bool:
    """Return whether every call of ``function`` finds the parameters unfrozen."""
    calls = facts.solved.calls.get(function, set())
    if not calls or function in facts.solved.handed_on:
        return False
    lines = [facts.index.line(facts.index.statement(call)) for call in calls]
    return all(_is_unfrozen(line, mine, toggles, facts, path) for line in lines)


def _toggles(facts: Facts) -> Iterator[Toggle]:
    for node in facts.index.nodes:
        if isinstance(node, cst.Assign) and any(_is_switch(target.target) for target in node.targets):
            function = facts.index.function(node)
            calls = facts.solved.calls.get(function, set()) if function is not None else set()
            is_helper = function is not None and _goes_over_parameter(node, facts)
            if function is not None and is_helper and calls and function not in facts.solved.handed_on:
                yield from (_called(call, function, node.value, facts) for call in calls)
            else:
                yield Toggle(node, _models_around(node, facts), _truth(node.value))
        elif isinstance(node, cst.Call) and _is_method(node.func, "requires_grad_") and node.args:
            assert isinstance(node.func, cst.Attribute)
            models = facts.events.objects.values(node.func.value)
            yield Toggle(node, _with_parts(models, facts), _truth(node.args[0].value))


def _is_method(func: cst.BaseExpression, name: str) -> bool:
    return isinstance(func, cst.Attribute) and func.attr.value == name


def _is_switch(target: cst.CSTNode) -> bool:
    return isinstance(target, cst.Attribute) and target.attr.value == "requires_grad"


def _called(call: cst.Call, function: cst.FunctionDef, value: cst.BaseExpression, facts: Facts) -> Toggle:
    """A helper such as ``set_requires_grad(model, False)``, at one of its calls."""
    bound = dict(facts.solved.functions_of(call)).get(function, False)
    given = {p.name.value: argument for p, argument in facts.solved.arguments(call, function, bound)}
    inverted = isinstance(value, cst.UnaryOperation) and isinstance(value.operator, cst.Not)
    inner = value.expression if isinstance(value, cst.UnaryOperation) else value
    argument = given.get(inner.value) if isinstance(inner, cst.Name) else None
    truth = _truth(argument) if argument is not None else _truth(inner)
    models = {each for arg in call.args for each in facts.events.objects.values(arg.value)}
    return Toggle(call, _with_parts(models, facts), truth if truth is None or not inverted else not truth)


def _goes_over_parameter(node: cst.CSTNode, facts: Facts) -> bool:
    """Return whether the loop around ``node`` is over what its function is given."""
    for outer in facts.index.ancestors(node):
        if isinstance(outer, cst.For):
            for name in facts.index.walk(outer.iter):
                if isinstance(name, cst.Name):
                    binders = facts.solved.names.binders(name.value, facts.index.scope(name))
                    if any(isinstance(binder, cst.Param) for binder in binders):
                        return True
    return False


def _models_around(node: cst.CSTNode, facts: Facts) -> frozenset[Value]:
    for outer in facts.index.ancestors(node):
        if isinstance(outer, cst.For):
            return _with_parts(facts.events.reach.models_in(outer.iter), facts)
    return frozenset()


def _with_parts(models: set[Value], facts: Facts) -> frozenset[Value]:
    return frozenset(inner for model in models for inner in facts.events.reach.inside(model))


def _truth(node: cst.BaseExpression | None) -> bool | None:
    return node.value == "True" if isinstance(node, cst.Name) and node.value in ("True", "False") else None


def _runs_before(node: cst.CSTNode, loop: Loop, facts: Facts) -> bool:
    function = facts.index.function(node)
    if function is not None and function.name.value == "__init__":
        return True
    return all(function is init.function and facts.index.before(node, init.statement) for init in loop.initialize)
