"""Decide about one training loop: everything that a native program needs, or the fact that is missing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Sequence

import libcst as cst

from ..findings import Level
from ..target import BFLOAT16, Target
from ..tree import walk
from .conditions import Atom, Conditions
from .delays import check_delay
from .events import Events
from .flags import check_flags
from .flow import Flow
from .guards import Guard, guard_of
from .index import Index, code_of
from .kinds import Kinds
from .levels import LossScale, OptLevel, loss_scale, opt_level
from .loop import Loop
from .model_calls import ModelCalls
from .objects import Entity
from .paths import Findings, Setup
from .placement import Placement, Placing
from .regions import Region, Regions
from .sites import CannotFollow
from .slices import Slice, Slices
from .solve import Solved
from .states import Gradients
from .values import Instance, Value


@dataclass(frozen=True)
class Review:
    """A reason why a native program would be different: what changes, and where."""

    why: str
    node: cst.CSTNode


@dataclass
class Decision:
    """A native program for one loop, as facts for the emitter."""

    loop: Loop
    guard: Guard
    level: OptLevel
    scale: LossScale
    scaler_of: dict[object, int]
    flow: Findings
    regions: list[Region]
    placement: Placement
    facts: tuple[Atom, ...]
    reviews: list[Review] = field(default_factory=list)
    is_conditional: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether nothing of amp is on: opt level O0."""
        return self.level.name == "O0" and self.level.expression is None


@dataclass(frozen=True)
class Facts:
    """What is known of a file, shared by its loops."""

    index: Index
    solved: Solved
    events: Events
    kinds: Kinds
    slices: Slices
    regions: Regions
    conditions: Conditions
    target: Target
    optimizers: tuple[Entity, ...]
    #: optimizers that were never given to amp
    others: tuple[Entity, ...]
    entry_points: tuple[cst.FunctionDef, ...]


def decide(loop: Loop, facts: Facts) -> Decision:
    """Return the native program for ``loop``.

    Raises CannotFollow with the first fact that is missing.
    """
    if not loop.initialize:
        raise CannotFollow("this file doesn't initialize amp for it", loop.first)
    init = loop.initialize[0]
    _check_initialize(loop, facts)
    if init.optimizers is None or not loop.blocks:
        raise CannotFollow("no loss is scaled here, so the model only infers", init.call, 25)
    _check_members(loop)
    level = opt_level(init, facts.solved)
    reviews = _level_reviews(level, init.call)
    is_off_by_default = level.expression is not None and level.name in (None, "O0")
    scale = loss_scale(init, "O1" if is_off_by_default else level.name or "O1")
    if scale.static is not None and level.name != "O0":
        reviews.append(
            Review(f"the loss scale is static ({scale.static:g}): Apex applied infinities, native skips", init.call)
        )
    guard = guard_of(init, level, facts.index, facts.conditions)
    check_flags(init, guard, level, facts.solved)
    world = (*guard.facts, *_facts_at_calls(init.function, facts))
    if level.name == "O0" and level.expression is None:
        if scale.static != 1.0:
            raise CannotFollow("opt level O0 with a loss scale", init.call, 6)
        return Decision(loop, guard, level, scale, {}, Findings(), [], Placement(init.function), world, [])
    scaler_of = _scalers(loop, reviews)
    findings = _run(loop, scaler_of, world, facts)
    _check_gradients(loop, facts)
    _check_delays(loop, findings, facts)
    _check_touches(loop, findings, facts)
    _check_wrappers(loop, findings, facts)
    regions = facts.regions.of(_losses(loop, findings, facts))
    if facts.target.autocast_eval:
        regions += [each for each in facts.regions.evaluation() if not _overlaps(each, regions, facts)]
    ModelCalls(facts.regions).check(_models(loop, facts), regions, _losses(loop, findings, facts))
    users = _users(loop, findings, facts)
    is_conditional = _is_conditional(init.function, facts)
    if is_conditional or guard.parts or level.expression is not None:  # then a region asks the scaler whether it's on
        users |= {facts.index.function(region.first) for region in regions}
    placement = Placing(facts.solved).place(init.function, users)
    decision = Decision(
        loop, guard, level, scale, scaler_of, findings, regions, placement, world, reviews, is_conditional
    )
    if level.name in ("O2", "O3"):
        _check_half(loop, findings, facts)
    if reviews and facts.target.level is not Level.REVIEW:
        raise NeedsReview(reviews)
    return decision


class NeedsReview(Exception):
    """The loop can be native, but would train differently; ``--level review`` is needed."""

    def __init__(self, reviews: Sequence[Review]) -> None:
        super().__init__("; ".join(each.why for each in reviews))
        self.reviews = tuple(reviews)


def _check_initialize(loop: Loop, facts: Facts) -> None:
    """Several calls must be equal, in one function and without guards: each then makes the scaler anew."""
    first = loop.initialize[0]
    for each in loop.initialize[1:]:
        guarded = [n for n in facts.index.ancestors(each.call) if isinstance(n, (cst.If, cst.Try))]
        is_equal = code_of(each.call) == code_of(first.call) and each.function is first.function
        if not is_equal or any(facts.index.function(n) is each.function for n in guarded):
            raise CannotFollow("amp is initialized in several places", each.call)


def _check_members(loop: Loop) -> None:
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


def _level_reviews(level: OptLevel, node: cst.CSTNode) -> list[Review]:
    if level.name == "O2":
        return [Review("at O2 the model itself was half and inputs were cast; natively its weights stay float32", node)]
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
                is_test = isinstance(outer, cst.If) and not _is_main_guard(outer)
                if isinstance(outer, cst.If) and is_test and not facts.conditions.is_availability(outer.test):
                    return True
        function = facts.index.function(next(iter(calls))) if len(calls) == 1 else None
    return False


def _is_main_guard(node: cst.If) -> bool:
    return "__name__" in code_of(node.test)


def _run(loop: Loop, scaler_of: dict[object, int], world: Sequence[Atom], facts: Facts) -> Findings:
    """Run the file on states, first without resets after caught exceptions, then with them."""
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
    for resets in (False, True):
        run = Flow(facts.events, facts.kinds, facts.conditions, replace(setup, resets=resets))
        found = run.run(facts.entry_points)
        mine = [problem for number, problem in found.problems if number in numbers]
        if found.is_mixed:
            why = "gradients of a plain backward are read here, and it would have to be scaled"
            mine += [CannotFollow(why, node, 10) for number, node in found.plain_touches if number in numbers]
        if not mine:
            _check_run(loop, found, facts)
            found.touches = {key: seen for key, seen in found.touches.items() if key[1] in numbers}
            found.steps = {node: n for node, n in found.steps.items() if n in numbers}
            return found
        first = first or mine[0]
    assert first is not None
    raise first


def _check_run(loop: Loop, found: Findings, facts: Facts) -> None:
    for block in loop.blocks:
        if block.block not in found.blocks:
            raise CannotFollow("this code is never reached while amp is on, as far as can be seen", block.call)
    stepped = {facts.optimizers[number].value for number in found.steps.values()}
    for block in loop.blocks:
        if any(each.value not in stepped for each in block.entities):
            raise CannotFollow(f"no step of `{block.entities[0].name}` can be found", block.call, 8)


def _check_delays(loop: Loop, found: Findings, facts: Facts) -> None:
    for block in loop.blocks:
        value = block.entities[0].value
        number = next(n for n, each in enumerate(facts.optimizers) if each.value == value)
        steps = [node for node, n in found.steps.items() if n == number]
        touches = [anchor for (anchor, n), seen in found.touches.items() if n == number and Gradients.SCALED in seen]
        check_delay(block, [*steps, *touches], facts.index, facts.conditions)


def _check_gradients(loop: Loop, facts: Facts) -> None:
    """A part of a model may get no gradient in a step: then GradScaler asserts, and Apex did nothing."""
    for block in loop.blocks:
        found = facts.slices.of(block.loss, gradients_only=True)
        for optimizer in block.entities:
            models = facts.events.reach.models_of(optimizer)
            if models and not any(each in found.values or _is_always_called(each, found, facts) for each in models):
                why = f"the loss may leave the parameters of `{optimizer.name}` without a gradient"
                raise CannotFollow(why, block.call, 5)


def _is_always_called(model: Value, found: Slice, facts: Facts) -> bool:
    """Return whether a function that the loss comes from calls ``model`` whatever it is given."""
    for function in found.functions:
        for call in walk(function.body):
            if not isinstance(call, cst.Call) or not facts.slices.runs(call, {model}):
                continue
            branches = (cst.If, cst.IfExp, cst.For, cst.While, cst.Try, cst.BooleanOperation, cst.Lambda)
            inside = [each for each in facts.index.ancestors(call) if facts.index.holds(function, each)]
            if not any(isinstance(each, branches) for each in inside):
                return True
    return False


def _check_wrappers(loop: Loop, found: Findings, facts: Facts) -> None:
    """A class around an optimizer with a ``step`` of its own: who else calls that can't be seen."""
    classes = {facts.index.class_of(block.function) for block in loop.blocks}
    for node in found.steps:
        function = facts.index.function(node)
        owner = facts.index.class_of(function)
        if function is not None and function.name.value == "step" and owner is not None and owner not in classes:
            raise CannotFollow(f"`{owner.name.value}.step` steps the optimizer inside it", node, 8)


def _check_touches(loop: Loop, found: Findings, facts: Facts) -> None:
    for (anchor, _), seen in found.touches.items():
        if Gradients.SCALED not in seen:
            continue
        if seen & {Gradients.UNSCALED}:
            raise CannotFollow("on some path the gradients would be unscaled twice here", anchor, 13)
        others = seen - {Gradients.SCALED}
        if others:
            raise CannotFollow(
                f"on some path there is nothing to unscale here ({next(iter(others)).value})", anchor, 13
            )


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
        models = init.models.elements if isinstance(init.models, (cst.List, cst.Tuple)) else [cst.Element(init.models)]
        mine |= {value for each in models for value in facts.events.objects.values(each.value)}
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
    users |= {facts.index.function(handler) for handler, _ in found.resets}
    return users


def _check_half(loop: Loop, found: Findings, facts: Facts) -> None:
    """At O2 only loops that touch weights and gradients through ``master_params`` and the optimizer are clean."""
    for (anchor, _), _seen in found.touches.items():
        masters = [c for c in loop.calls if c.name == "master_params" and facts.index.holds(anchor, c.call)]
        if not masters:
            why = "at O2 the model's gradients aren't those of the master weights, and they are used here"
            raise CannotFollow(why, anchor, 18)
    for node in walk(facts.index.module):
        if isinstance(node, (cst.Call, cst.Assign, cst.AugAssign)) and facts.regions.computing.changes_weights(node):
            raise CannotFollow(
                "at O2 the model's weights aren't the master weights, and they are changed here", node, 18
            )
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "half":
            raise CannotFollow("tensors are made half by hand", node, 25)


def is_bfloat16(target: Target) -> bool:
    """Return whether the native program has no scaler."""
    return target.dtype == BFLOAT16
