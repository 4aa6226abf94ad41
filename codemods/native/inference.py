"""Programs in which amp only infers: no loss is scaled, so there is no scaler, and the model runs under autocast."""

from __future__ import annotations

from ..findings import Level
from .decision import Decision, Facts, NeedsReview, Review
from .guards import guard_of
from .levels import LossScale, opt_level
from .loop import Loop
from .model_calls import ModelCalls
from .paths import Findings
from .placement import Placement
from .problem import CannotFollow
from .regions import Region
from .states import Event

_TRAINS = {Event.PLAIN_BACKWARD, Event.STEP}


def decide_inference(loop: Loop, facts: Facts) -> Decision:
    """Return the native program for a loop that scales no loss.

    Raises CannotFollow for a program that trains all the same, and for a call of the model outside ``no_grad``.
    """
    init = loop.initialize[0]
    if len(loop.initialize) > 1 or loop.calls or loop.scales:
        raise CannotFollow("no loss is scaled here, but amp is used for more than to infer", init.call, 25)
    optimizers = {each.value for each in loop.optimizers}
    for happenings in facts.events.at.values():
        for each in happenings:
            concerned = each.optimizers is None or any(o.value in optimizers for o in each.optimizers)
            if each.event in _TRAINS and concerned and optimizers:
                raise CannotFollow("no loss is scaled here, and yet the optimizer is used", each.node, 10)
    level = opt_level(init, facts.solved)
    reviews = []
    if level.name not in ("O0", "O1"):
        reviews = [
            Review("the model itself was half; natively its weights stay float32, and autocast casts", init.call)
        ]
    guard = guard_of(init, level, facts.index, facts.conditions)
    regions = [] if level.name == "O0" and level.expression is None else _regions(loop, facts)
    if reviews and facts.target.level is not Level.REVIEW:
        raise NeedsReview(reviews)
    return Decision(
        loop,
        guard,
        level,
        LossScale(),
        {},
        Findings(),
        regions,
        Placement(init.function),
        guard.facts,
        reviews,
        infers=True,
    )


def _regions(loop: Loop, facts: Facts) -> list[Region]:
    """Every call of the model must stand in evaluation: there what it computes reaches no loss."""
    init = loop.initialize[0]
    models = frozenset(value for each in init.model_expressions for value in facts.events.objects.values(each))
    if not models:
        raise CannotFollow("which model amp gets can't be seen", init.call, 25)
    regions = facts.regions.evaluation()
    if not regions:
        raise CannotFollow("no loss is scaled here, and the model isn't called under `torch.no_grad()`", init.call, 25)
    ModelCalls(facts.regions).check_held(models, regions, init.call)
    return regions
