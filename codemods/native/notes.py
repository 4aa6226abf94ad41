"""What a person should know about a loop that became native: notes, each with the code of its rule."""

from __future__ import annotations

import libcst as cst

from ..edits import Site
from ..findings import Kind
from .decision import Decision, Facts
from .index import Index
from .loop_shapes import is_no_grad
from .schedules import schedule_steps

EVALUATION, UNSAVED, SCHEDULE, ACCUMULATION, REVIEWED, LEVELS = (
    "AMP192",
    "AMP193",
    "AMP194",
    "AMP195",
    "AMP196",
    "AMP197",
)


def loop_notes(decision: Decision, facts: Facts) -> list[tuple[str, Site]]:
    """Return the notes on one loop."""
    notes = [*_reviewed(decision), *_levels(decision)]
    if decision.infers:
        return notes
    notes += _unsaved(decision, facts)
    if not decision.is_plain:
        notes += _accumulation(decision, facts)
        notes += [] if facts.target.autocast_eval else _evaluation(decision, facts)
        notes += [] if facts.target.guard_scheduler else _schedules(facts)
    return notes


def _note(code: str, node: cst.CSTNode, message: str, advice: str = "") -> tuple[str, Site]:
    return code, Site(node, message, advice, None, Kind.NOTE)


def _reviewed(decision: Decision) -> list[tuple[str, Site]]:
    return [_note(REVIEWED, each.node, each.why) for each in decision.reviews]


def _levels(decision: Decision) -> list[tuple[str, Site]]:
    return [*_level(decision), *_scale(decision)]


def _scale(decision: Decision) -> list[tuple[str, Site]]:
    if not decision.scale.is_chosen:
        return []
    message = "a static loss scale that an option asks for has no effect any more: native AMP adjusts the scale"
    return [_note(LEVELS, decision.loop.first, message)]


def _level(decision: Decision) -> list[tuple[str, Site]]:
    if decision.level.expression is None or decision.level.switch is not None:
        return []
    message = "an opt level other than O0 now means autocast with float32 weights: O2 and O3 train as O1 does"
    return [_note(LEVELS, decision.loop.first, message)]


def _unsaved(decision: Decision, facts: Facts) -> list[tuple[str, Site]]:
    if any(call.name == "state_dict" for call in decision.loop.calls) or decision.is_plain:
        return []
    for node in facts.index.nodes:
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "save":
            receiver = node.func.value
            if isinstance(receiver, cst.Name) and receiver.value == "torch":
                message = "this checkpoint doesn't hold the loss scale, so a resumed run starts with another one"
                return [_note(UNSAVED, node, message, "add `scaler.state_dict()` to it")]
    return []


def _runs_in_region(node: cst.CSTNode, lines: set[cst.CSTNode], facts: Facts, path: tuple[cst.CSTNode, ...]) -> bool:
    if any(each in lines for each in facts.index.ancestors(node)):
        return True
    function = facts.index.function(node)
    calls = facts.solved.calls.get(function, set()) if function is not None else set()
    if function is None or not calls or function in path:
        return False
    return all(_runs_in_region(call, lines, facts, (*path, function)) for call in calls)


def _evaluation(decision: Decision, facts: Facts) -> list[tuple[str, Site]]:
    lines: set[cst.CSTNode] = {line for each in decision.regions for line in facts.regions.lines_of(each)}
    for node in facts.index.nodes:
        if not isinstance(node, cst.With) or not is_no_grad(node) or any(line in lines for line in node.body.body):
            continue
        if facts.regions.computing.involves_model(node.body) and not _runs_in_region(node, lines, facts, ()):
            message = "evaluation ran in mixed precision under Apex; now it runs in float32"
            return [_note(EVALUATION, node, message, "`--autocast-eval` puts it under autocast as well")]
    return []


def _schedules(facts: Facts) -> list[tuple[str, Site]]:
    for node in schedule_steps(facts.index.module):
        message = "the schedule also advances on skipped steps, as it did under Apex"
        return [_note(SCHEDULE, node, message, "`--guard-scheduler` makes it wait")]
    return []


def _accumulation(decision: Decision, facts: Facts) -> list[tuple[str, Site]]:
    index: Index = facts.index
    for node in decision.flow.scaled_plain:
        message = "this backward is scaled as well now, so it can overflow, and a step be skipped for it"
        return [_note(ACCUMULATION, node, message)]
    if decision.flow.accumulates:
        first = min(decision.flow.steps, key=lambda each: index.order[each])
        message = (
            "several backwards lead to a step: an overflow now counts once per step, not once per backward, "
            "so other steps may be skipped"
        )
        return [_note(ACCUMULATION, first, message)]
    return []
