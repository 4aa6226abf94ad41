"""Decide about one training loop: everything that a native program needs, or the fact that is missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

import libcst as cst

from ..findings import Level
from .checks import (
    check_delays,
    check_gradients,
    check_half,
    check_initialize,
    check_members,
    check_run,
    check_scales,
    check_wrappers,
    place_problems,
)
from .conditions import Atom
from .decision import Decision, Facts, NeedsReview, Review
from .flags import check_flags
from .flow import Flow
from .guards import guard_of, is_main_guard
from .half_leaks import HalfLeaks
from .inference import decide_inference
from .levels import OptLevel, loss_scale, opt_level
from .loop import Loop
from .loss_scales import ScaleRead
from .model_calls import ModelCalls
from .objects import Entity
from .paths import Findings, Setup
from .placement import Placement, Placing
from .problem import CannotFollow
from .regions import Region
from .slices import Slice
from .states import Gradients
from .values import Instance, Value


def decide(loop: Loop, facts: Facts) -> Decision:
    """Return the native program for ``loop``.

    Raises CannotFollow with the first fact that is missing.
    """
    if not loop.initialize:
        raise CannotFollow("this file doesn't initialize amp for it", loop.first)
    init = loop.initialize[0]
    check_initialize(loop, facts)
    if not loop.blocks:
        return decide_inference(loop, facts)
    check_members(loop)
    level = opt_level(init, facts.solved)
    reviews = _level_reviews(level, init.call)
    is_off_by_default = level.expression is not None and level.name in (None, "O0")
    scale = loss_scale(init, "O1" if is_off_by_default else level.name or "O1", facts.solved)
    if scale.static is not None and level.name != "O0":
        reviews.append(
            Review(f"the loss scale is static ({scale.static:g}): Apex applied infinities, native skips", init.call)
        )
    if scale.is_computed:
        why = "the loss scale is computed, and may be static at run time; natively it is dynamic"
        reviews.append(Review(why, init.call))
    guard = guard_of(init, level, facts.index, facts.conditions)
    check_flags(init, guard, level, facts.solved)
    world = (*guard.facts, *_facts_at_calls(init.function, facts))
    if level.name == "O0" and level.expression is None:
        if scale.static != 1.0:
            raise CannotFollow("opt level O0 with a loss scale", init.call, 6)
        if loop.scales:
            raise CannotFollow(
                "a loss scale is asked for, and at O0 the native program has none", loop.scales[0].node, 6
            )
        return Decision(loop, guard, level, scale, {}, Findings(), [], Placement(init.function), world, [])
    scaler_of = _scalers(loop, reviews)
    findings = _run(loop, scaler_of, world, facts)
    reviews += [
        Review("the program leaves out a step; if gradients overflowed, Apex left out the next one as well", node)
        for node in sorted({node for node, _, _ in findings.skips}, key=lambda each: facts.index.order[each])
    ]
    check_gradients(loop, facts)
    check_delays(loop, findings, facts)
    check_wrappers(loop, findings, facts)
    check_scales(loop, findings, scaler_of, facts)
    regions = facts.regions.of(_losses(loop, findings, facts))
    if facts.target.autocast_eval:
        regions += [each for each in facts.regions.evaluation() if not _overlaps(each, regions, facts)]
    hoisted = tuple(facts.regions.hoisted)
    arguments = [argument for _, argument in hoisted]
    HalfLeaks(facts.regions).check(regions, arguments)
    ModelCalls(facts.regions).check(_models(loop, facts), regions, [*_losses(loop, findings, facts), *arguments])
    users = _users(loop, findings, facts)
    is_conditional = _is_conditional(init.function, facts)
    if is_conditional or guard.parts or level.expression is not None:  # then a region asks the scaler whether it's on
        users |= {facts.index.function(each) for each in (*(region.first for region in regions), *arguments)}
    placement = Placing(facts.solved).place(init.function, users)
    decision = Decision(
        loop,
        guard,
        level,
        scale,
        scaler_of,
        findings,
        regions,
        placement,
        world,
        reviews,
        is_conditional,
        hoisted=hoisted,
    )
    if level.name in ("O2", "O3"):
        check_half(loop, findings, facts)
    if reviews and facts.target.level is not Level.REVIEW:
        raise NeedsReview(reviews)
    return decision


def _level_reviews(level: OptLevel, node: cst.CSTNode) -> list[Review]:
    if level.name == "O2":
        return [Review("the model itself was half (O2) and inputs were cast; natively its weights stay float32", node)]
    if level.name == "O3":
        raise CannotFollow("at O3 the whole model is half, which native AMP doesn't do", node, 25)
    if level.name is None:
        return [Review("which opt level is used can't be seen; natively it becomes that of O1, or off for O0", node)]
    return []


def _scalers(loop: Loop, reviews: list[Review]) -> dict[object, int]:
    """Number the loss scalers: one per loss id, joined where two ids meet in one optimizer."""
    ids: dict[object, set[int | None]] = {}
    for block in loop.blocks:
        ids.setdefault(block.entities[0].value, set()).add(block.loss_id)
    groups: list[tuple[set[int | None], list[object]]] = []
    for optimizer, mine in ids.items():
        if len(mine) > 1 or None in mine:
            why = "several loss ids meet in one optimizer; natively they share one loss scale"
            reviews.append(Review(why, loop.blocks[0].call))
        joined = [group for group in groups if group[0] & mine]
        if None in mine and len(ids) > 1:
            raise CannotFollow(
                "which loss scaler is meant is computed, and there are several optimizers", loop.first, 1
            )
        members = [optimizer, *(each for group in joined for each in group[1])]
        all_ids = mine.union(*(group[0] for group in joined))
        groups = [group for group in groups if group not in joined] + [(all_ids, members)]
    return {optimizer: number for number, (_, members) in enumerate(groups) for optimizer in members}


def _facts_at_calls(function: cst.FunctionDef | None, facts: Facts) -> tuple[Atom, ...]:
    """What holds where the function that initializes is called, if that is one place."""
    found: list[Atom] = []
    for _ in range(4):
        calls = facts.solved.calls.get(function, set()) if function is not None else set()
        if function is None or len(calls) != 1 or function in facts.solved.handed_on:
            break
        call = next(iter(calls))
        inner: cst.CSTNode = call
        for outer in facts.index.ancestors(call):
            if isinstance(outer, cst.FunctionDef):
                break
            if isinstance(outer, (cst.For, cst.While)):
                return tuple(found)  # what holds in one round needn't hold in the next
            if isinstance(outer, cst.If) and inner is not outer.test:
                found += facts.conditions.conjuncts(outer.test, inner is outer.body)
            inner = outer
        function = facts.index.function(call)
    return tuple(found)


def _is_conditional(function: cst.FunctionDef | None, facts: Facts) -> bool:
    """Return whether the function that initializes may not be called at all, or later than others."""
    seen: set[cst.FunctionDef] = set()
    while function is not None and function not in seen:
        seen.add(function)
        calls = facts.solved.calls.get(function, set())
        for call in calls:
            for outer in facts.index.ancestors(call):
                if isinstance(outer, cst.FunctionDef):
                    break
                is_test = isinstance(outer, cst.If) and not is_main_guard(outer)
                if isinstance(outer, cst.If) and is_test and not facts.conditions.is_availability(outer.test):
                    return True
        function = facts.index.function(next(iter(calls))) if len(calls) == 1 else None
    return False


#: what the native program may do besides, from what it usually does to what it seldom has to
_MODES: tuple[tuple[str, ...], ...] = (
    (),
    ("early",),
    ("eager",),
    ("resets",),
    ("skips",),
    ("skips", "early"),
    ("skips", "eager"),
)


def _run(loop: Loop, scaler_of: dict[object, int], world: Sequence[Atom], facts: Facts) -> Findings:
    """Run the file on states, in the first of the modes in which nothing goes wrong."""
    holders = {each.function for each in loop.blocks} | {each.function for each in loop.initialize}
    values = {each.value for each in loop.optimizers}
    for happenings in facts.events.at.values():
        for each in happenings:
            if each.event.name == "STEP" and any(o.value in values for o in each.optimizers or ()):
                holders.add(facts.index.function(each.node))
    numbers = [facts.optimizers.index(each) for each in facts.optimizers if each.value in values]
    setup = Setup(
        facts.optimizers,
        tuple(scaler_of.get(each.value, 1000 + n) for n, each in enumerate(facts.optimizers)),
        tuple(world),
        frozenset(holders),
        lambda loss: _reached(loss, facts),
        lambda loss: _reaches_others(loss, facts),
    )
    first: CannotFollow | None = None
    for owner, problem in facts.events.problems:
        if owner is None or owner.value in values:
            raise problem
    for mode in _MODES:
        in_mode = replace(setup, **dict.fromkeys(mode, True))  # type: ignore[arg-type]
        run = Flow(facts.events, facts.kinds, facts.conditions, in_mode)
        found = run.run(facts.entry_points)
        mine = [problem for number, problem in found.problems if number in numbers]
        if found.is_mixed:
            why = "gradients of a plain backward are read here, and it would have to be scaled"
            mine += [CannotFollow(why, node, 10) for number, node in found.plain_touches if number in numbers]
        if not mine:
            mine += place_problems(found, numbers)
        if not mine:
            check_run(loop, found, facts)
            found.touches = {key: seen for key, seen in found.touches.items() if key[1] in numbers}
            found.steps = {node: n for node, n in found.steps.items() if n in numbers}
            return found
        first = first or mine[0]
    assert first is not None
    raise first


def _reached(loss: cst.BaseExpression, facts: Facts) -> frozenset[Entity]:
    """Return the optimizers into whose parameters a backward from ``loss`` may write."""
    found = facts.slices.of(loss, gradients_only=True)
    if not found.is_whole:
        return frozenset(facts.optimizers)
    return frozenset(each for each in facts.optimizers if _meets(found, each, facts))


def _reaches_others(loss: cst.BaseExpression, facts: Facts) -> bool:
    """Return whether a backward from ``loss`` may write into parameters of an optimizer that amp doesn't have."""
    found = facts.slices.of(loss, gradients_only=True)
    return any(not found.is_whole or _meets(found, each, facts) for each in facts.others)


def _meets(found: Slice, optimizer: Entity, facts: Facts) -> bool:
    reach = facts.events.reach
    mentioned = {inner for value in found.values | found.through for inner in reach.inside(value)}
    mine = reach.models_of(optimizer)
    inner = {value for model in mine for value in reach.inside(model)}
    return not mine or bool(inner & mentioned) or not all(_is_model(value, facts) for value in mine)


def _overlaps(region: Region, others: Sequence[Region], facts: Facts) -> bool:
    lines = {line for other in others for line in facts.regions.lines_of(other)}
    around = [region.first, *facts.index.ancestors(region.first)]
    return any(line in lines for line in around) or any(
        facts.index.holds(line, other.first) for line in facts.regions.lines_of(region) for other in others
    )


def _is_model(value: object, facts: Facts) -> bool:
    return isinstance(value, Instance) or value in facts.slices.models


def _models(loop: Loop, facts: Facts) -> frozenset[Value]:
    """Return the models that the loop trains, as far as they are objects that are called."""
    reach = facts.events.reach
    mine = {model for each in loop.optimizers for model in reach.models_of(each)}
    for init in loop.initialize:
        mine |= {value for each in init.model_expressions for value in facts.events.objects.values(each)}
    return frozenset(mine)


def _losses(loop: Loop, found: Findings, facts: Facts) -> list[cst.BaseExpression]:
    """Return what regions must compute: under Apex plain losses beside the scaled ones were cast as well."""
    losses = [block.loss for block in loop.blocks]
    functions = {block.function for block in loop.blocks}
    for call in sorted(found.all_plain, key=lambda node: facts.index.order[node]):
        assert isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute)
        if call not in found.plain and facts.index.function(call) not in functions:
            continue
        if facts.regions.computing.computes(call.func.value):
            raise CannotFollow("the loss of a plain backward is computed where backward is called", call, 19)
        losses.append(call.func.value)
    return losses


def _users(loop: Loop, found: Findings, facts: Facts) -> set[cst.FunctionDef | None]:
    users = {each.function for each in loop.blocks}
    users |= {facts.index.function(node) for node in found.steps}
    users |= {facts.index.function(anchor) for (anchor, _), seen in found.touches.items() if Gradients.SCALED in seen}
    users |= {facts.index.function(node) for node in found.scaled_plain}
    users |= {call.function for call in loop.calls if call.name in ("state_dict", "load_state_dict")}
    users |= {use.function for use in loop.scales if isinstance(use, ScaleRead)}
    users |= {facts.index.function(handler) for handler, _ in found.resets}
    users |= {facts.index.function(node) for node, _, _ in found.skips}
    return users
