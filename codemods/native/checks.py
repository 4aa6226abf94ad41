"""What must hold of a training loop before it can be native. Each check raises CannotFollow with the first fault."""

from __future__ import annotations

from typing import Collection, Mapping

import libcst as cst

from .decision import Facts
from .delays import check_delay
from .half_sites import HalfUses
from .index import code_of
from .loop import Loop
from .loss_scales import ScaleWrite, check_write, scaler_number
from .paths import Findings
from .problem import CannotFollow
from .slices import Slice
from .states import PREPARED, Gradients
from .values import Value

#: backward has run, and native AMP has not yet brought the scale up to date
_WAITING = (
    Gradients.SCALED,
    Gradients.UNSCALED,
    Gradients.PENDING,
    Gradients.STEPPED,
    Gradients.UNKNOWN,
    Gradients.OPEN,
)


def check_initialize(loop: Loop, facts: Facts) -> None:
    """Several calls must be equal, in one function and without guards: each then makes the scaler anew."""
    first = loop.initialize[0]
    for each in loop.initialize[1:]:
        guarded = [n for n in facts.index.ancestors(each.call) if isinstance(n, (cst.If, cst.Try))]
        is_equal = code_of(each.call) == code_of(first.call) and each.function is first.function
        if not is_equal or any(facts.index.function(n) is each.function for n in guarded):
            raise CannotFollow("amp is initialized in several places", each.call)


def check_members(loop: Loop) -> None:
    given = {each.value for init in loop.initialize for each in init.entities}
    for block in loop.blocks:
        if len(block.entities) > 1:
            why = "one loss is scaled for several optimizers: Apex skips all of them on an overflow, GradScaler one"
            raise CannotFollow(why, block.call, 4)
        for each in block.entities:
            if each.value not in given:
                raise CannotFollow(
                    f"`{each.name}` isn't one of the optimizers that `amp.initialize` got", block.call, 8
                )


def check_run(loop: Loop, found: Findings, facts: Facts) -> None:
    for block in loop.blocks:
        if block.block not in found.blocks:
            raise CannotFollow("this code is never reached while amp is on, as far as can be seen", block.call)
    stepped = {facts.optimizers[number].value for number in found.steps.values()}
    for block in loop.blocks:
        if any(each.value not in stepped for each in block.entities):
            raise CannotFollow(f"no step of `{block.entities[0].name}` can be found", block.call, 8)


def check_delays(loop: Loop, found: Findings, facts: Facts) -> None:
    for block in loop.blocks:
        value = block.entities[0].value
        number = next(n for n, each in enumerate(facts.optimizers) if each.value == value)
        steps = [node for node, n in found.steps.items() if n == number]
        touches = [anchor for (anchor, n), seen in found.touches.items() if n == number and Gradients.SCALED in seen]
        check_delay(block, [*steps, *touches], facts.index, facts.conditions)


def check_gradients(loop: Loop, facts: Facts) -> None:
    """A part of a model may get no gradient in a step: then GradScaler asserts, and Apex did nothing."""
    for block in loop.blocks:
        found = facts.slices.of(block.loss, gradients_only=True)
        for optimizer in block.entities:
            models = facts.events.reach.models_of(optimizer)
            if models and not any(each in found.values or _is_always_called(each, found, facts) for each in models):
                why = f"the loss may leave the parameters of `{optimizer.name}` without a gradient"
                raise CannotFollow(why, block.call, 5)


def _is_always_called(model: Value, found: Slice, facts: Facts) -> bool:
    """Return whether a function that the loss comes from calls ``model`` whatever it is given, or what does so."""
    waiting, seen = list(found.functions), set(found.functions)
    while waiting:
        function = waiting.pop()
        for call in facts.index.walk(function.body):
            if not isinstance(call, cst.Call) or not _surely_runs(call, function, facts):
                continue
            if facts.slices.runs(call, {model}):
                return True
            for called, _ in facts.solved.functions_of(call):
                if called not in seen:
                    seen.add(called)
                    waiting.append(called)
    return False


def _surely_runs(call: cst.Call, function: cst.FunctionDef, facts: Facts) -> bool:
    """Return whether every run of ``function`` gets to ``call``."""
    branches = (cst.If, cst.IfExp, cst.For, cst.While, cst.Try, cst.BooleanOperation, cst.Lambda, cst.Match)
    inside = [each for each in facts.index.ancestors(call) if facts.index.holds(function, each)]
    if any(isinstance(each, branches) for each in inside):
        return False
    earlier = [n for n in facts.index.walk(function.body) if isinstance(n, cst.Return) and facts.index.before(n, call)]
    return all(facts.index.holds(each, call) for each in earlier)


def check_scales(loop: Loop, found: Findings, scaler_of: Mapping[object, int], facts: Facts) -> None:
    """Apex changes the scale at the end of a block, native AMP after the step: it is read outside of that time."""
    for use in loop.scales:
        number = scaler_number(use, loop, scaler_of)
        if isinstance(use, ScaleWrite):
            check_write(use, loop.initialize[0].statement, facts.index)
            continue
        for place, gradients in found.scale_reads.get(use.node, ()):
            if scaler_of.get(facts.optimizers[place].value) == number and gradients in _WAITING:
                why = "the loss scale is read between backward and step, where Apex has changed it already"
                raise CannotFollow(why, use.node, 17)


def check_wrappers(loop: Loop, found: Findings, facts: Facts) -> None:
    """A class around an optimizer with a ``step`` of its own: who else calls that can't be seen."""
    classes = {facts.index.class_of(block.function) for block in loop.blocks}
    for node in found.steps:
        function = facts.index.function(node)
        owner = facts.index.class_of(function)
        if function is not None and function.name.value == "step" and owner is not None and owner not in classes:
            raise CannotFollow(f"`{owner.name.value}.step` steps the optimizer inside it", node, 8)


def place_problems(found: Findings, numbers: Collection[int]) -> list[CannotFollow]:
    """Return what is wrong about the places where the optimizers ``numbers`` need ``unscale_``, or an ``update``."""
    problems = []
    for (anchor, number), seen in found.touches.items():
        others = seen - {Gradients.SCALED}
        if number not in numbers or Gradients.SCALED not in seen or not others:
            continue
        why = f"on some path there is nothing to unscale here ({next(iter(others)).value})"
        if Gradients.UNSCALED in seen:
            why = "on some path the gradients would be unscaled twice here"
        problems.append(CannotFollow(why, anchor, 13))
    for node, is_behind, number in found.skips:
        seen = {gradients for owner, gradients in found.leaving[node, is_behind] if owner == number}
        if number in numbers and not seen <= PREPARED:
            why = "a step is left out here, and not on every path has it been prepared"
            problems.append(CannotFollow(why, node, 7))
    return problems


def check_half(loop: Loop, found: Findings, facts: Facts) -> None:
    """At O2 only loops that touch weights and gradients through ``master_params`` and the optimizer are clean."""
    half = loop.initialize[0].half or HalfUses()
    for (anchor, _), _seen in found.touches.items():
        if any(facts.index.holds(anchor, clip) for clip in half.clips):
            continue
        masters = [c for c in loop.calls if c.name == "master_params" and facts.index.holds(anchor, c.call)]
        if not masters:
            why = "at O2 the model's gradients aren't those of the master weights, and they are used here"
            raise CannotFollow(why, anchor, 18)
    for node in facts.index.nodes:
        if node in found.steps or (isinstance(node, cst.Call) and any(True for _ in facts.solved.functions_of(node))):
            continue  # what a function of this file does is looked at inside it
        if isinstance(node, (cst.Call, cst.Assign, cst.AugAssign)) and facts.regions.computing.changes_weights(node):
            raise CannotFollow(
                "at O2 the model's weights aren't the master weights, and they are changed here", node, 18
            )
        if node in half.halves:
            continue
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "half":
            raise CannotFollow("tensors are made half by hand", node, 25)
