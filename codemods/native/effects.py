"""What the events of a run do to its states, and what they find on the way."""

from __future__ import annotations

from typing import Callable, Iterable, Sequence

import libcst as cst

from .assumptions import Assumptions
from .conditions import Conditions
from .events import Events, Happening
from .index import Index
from .kinds import Kinds
from .objects import Entity
from .paths import Findings, Setup, State, States
from .problem import CannotFollow
from .sites import ScaleLoss
from .states import Event, Gradients, Wrong, after

MOST_STATES = 600
GRADIENT_EVENTS = {Event.TOUCH}
BACKWARDS = {Event.SCALED_BACKWARD, Event.PLAIN_BACKWARD}


class Effects:
    """The states of one run, and its events. The paths are ``flow.py``'s."""

    def __init__(self, events: Events, kinds: Kinds, conditions: Conditions, setup: Setup) -> None:
        self.events = events
        self.index: Index = events.index
        self.kinds = kinds
        self.conditions = conditions
        self.setup = setup
        self.number = {each.value: n for n, each in enumerate(setup.optimizers)}
        self.found = Findings()
        self.assumptions = Assumptions(self.index, conditions)
        self._frames: list[tuple[cst.FunctionDef, cst.Call | None]] = []
        self._traces: list[set[State]] = []
        self._inside: list[tuple[ScaleLoss, States]] = []
        #: (statement, optimizer) that were touched in the current run of the statement
        self._touched: set[tuple[cst.CSTNode, int]] = set()

    def apply(self, happening: Happening, states: States) -> States:
        event, node = happening.event, happening.node
        if event is Event.TOUCH:
            return self.touch(node, happening.optimizers, states)
        if event is Event.SCALE_READ:
            if not self._inside:  # in a block Apex hasn't changed the scale yet
                seen = {each for state in states for each in enumerate(state.gradients)}
                self.found.scale_reads.setdefault(node, set()).update(seen)
            return states
        if event is Event.SCALED_BACKWARD:
            assert happening.site is not None
            return self.backward(happening.site, node, states)
        if event is Event.PLAIN_BACKWARD:
            return self.plain_backward(node, states)
        numbers = [self.number[each.value] for each in happening.optimizers or ()]
        if self._inside and event in (Event.CLEAR, Event.ZERO):
            why = "gradients are cleared in the block of `amp.scale_loss`, where Apex keeps the earlier ones aside"
            self.problem(numbers, why, node, 15)
        states = self._mapped(states, lambda s: self._changed(s, dict.fromkeys(numbers, event), node))
        return self.update(node, numbers, states) if event is Event.STEP else states

    def backward(self, site: ScaleLoss, node: cst.CSTNode, states: States) -> States:
        self.found.blocks.add(site.block)
        named = {self.number[each.value] for each in site.entities}
        if any(state.gradients[n] is Gradients.SCALED for state in states for n in named):
            self.found.accumulates.add(node)
        if any(state.gradients[n] in site.refuses for state in states for n in named):
            why = "gradients are accumulated under the handle of amp, which unscaled those that were there once more"
            self.problem(named, why, node, 10)
        if any(state.gradients[n] is Gradients.PLAIN for state in states for n in named):
            self.found.is_mixed = True
        reached = {self.number[each.value] for each in self.setup.reached(site.loss)} - named
        changes = {**dict.fromkeys(reached, Event.FOREIGN_BACKWARD), **dict.fromkeys(named, Event.SCALED_BACKWARD)}
        return self._mapped(states, lambda s: self._changed(s, changes, node))

    def plain_backward(self, node: cst.CSTNode, states: States) -> States:
        assert isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute)
        reached = {self.number[each.value] for each in self.setup.reached(node.func.value)}
        if self._inside and reached:
            why = "in the block of `amp.scale_loss`, backward runs on something other than the scaled loss"
            self.problem(reached, why, node, 10)
        self.found.all_plain.add(node)
        if reached and self.setup.reaches_others(node.func.value):
            self.problem(reached, "a plain backward may also reach an optimizer that amp doesn't know", node, 10)
        scalers = {self.setup.scaler_of[n] for n in reached}
        if len(scalers) > 1:
            self.problem(reached, "a plain backward reaches optimizers with different loss scales", node, 10)
        elif scalers:
            self.found.plain[node] = scalers.pop()
        if any(state.gradients[n] is Gradients.SCALED for state in states for n in reached):
            self.found.is_mixed = True
        return self._mapped(states, lambda s: self._changed(s, dict.fromkeys(reached, Event.PLAIN_BACKWARD), node))

    def update(self, node: cst.CSTNode, numbers: Sequence[int], states: States) -> States:
        for number in numbers:
            self.found.steps[node] = number
            if self._inside:
                self.problem(
                    [number], "the step stands in the block of `amp.scale_loss`, before Apex unscales", node, 15
                )
            shared = [n for n, s in enumerate(self.setup.scaler_of) if s == self.setup.scaler_of[number]]
            updates = dict.fromkeys(shared, Event.UPDATE)
            states = frozenset(self._changed(state, updates, node) for state in states)
            states = self._mapped(states, lambda s: s)
        return states

    def touch(self, node: cst.CSTNode, owners: Iterable[Entity] | None, states: States, raw: bool = False) -> States:
        """Gradients are read or changed at ``node``: natively they must be unscaled there, as they were under Apex."""
        numbers = [self.number[o.value] for o in (self.setup.optimizers if owners is None else owners)]
        if self._inside:
            self._touch_in_block(numbers, node)
            return states
        anchor = self._anchor(node)
        for number in numbers:
            seen = {state.gradients[number] for state in states}
            if Gradients.PLAIN in seen:
                self.found.plain_touches.append((number, node))
            if anchor is None:
                if seen & {Gradients.SCALED}:
                    why = "gradients are read or changed in a function that has no scaler"
                    self.problem([number], why, node, 15)
                continue
            if (anchor, number) not in self._touched:
                self.found.touches.setdefault((anchor, number), set()).update(seen)
                self._touched.add((anchor, number))
        return self._mapped(states, lambda s: self._changed(s, dict.fromkeys(numbers, Event.TOUCH), node))

    def _touch_in_block(self, numbers: Sequence[int], node: cst.CSTNode) -> None:
        site, before = self._inside[-1]
        if self._is_kept(node, site):
            self.problem(numbers, "gradients are kept in the block of `amp.scale_loss` and used behind it", node, 15)
        for number in numbers:
            if any(state.gradients[number] in (Gradients.SCALED, Gradients.PLAIN) for state in before):
                why = "with accumulation, what stands in the block saw the newest micro-batch alone"
                self.problem([number], why, node, 15)

    def _is_kept(self, node: cst.CSTNode, site: ScaleLoss) -> bool:
        """Return whether a statement in the block binds a name to gradients that is read behind the block."""
        line = self.index.statement(node)
        if not isinstance(line, cst.Assign):
            return False
        names = {n.value for t in line.targets for n in self.index.walk(t.target) if isinstance(n, cst.Name)}
        scope = self.index.module if site.function is None else site.function.body
        return any(
            isinstance(each, cst.Name) and each.value in names and not self.index.holds(site.block, each)
            for each in self.index.walk(scope)
        )

    def _anchor(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Return the statement before which ``unscale_`` can stand, in the innermost function with a scaler."""
        if self.index.function(node) in self.setup.holders:
            anchor = node if isinstance(node, (cst.For, cst.While)) else self.index.statement(node)
            is_simple = isinstance(anchor, cst.BaseSmallStatement)
            return None if is_simple and self.kinds.of(anchor) & BACKWARDS else anchor
        for _function, call in reversed(self._frames):
            if call is not None and self.index.function(call) in self.setup.holders:
                anchor = self.index.statement(call)
                return anchor if self.kinds.of(anchor) == GRADIENT_EVENTS else None
        return None

    # -- states --------------------------------------------------------------------------------------------------

    def _changed(self, state: State, changes: dict[int, Event], node: cst.CSTNode) -> State:
        gradients = list(state.gradients)
        for number, event in changes.items():
            new = after(event, gradients[number])
            if isinstance(new, Wrong):
                self.problem([number], new.why, node, new.rule)
                new = Gradients.EMPTY if event in (Event.CLEAR, Event.UPDATE) else gradients[number]
            gradients[number] = new
        return State(tuple(gradients), state.assumed)

    def _mapped(self, states: States, change: Callable[[State], State]) -> States:
        new = frozenset(change(state) for state in states)
        if len(new) > MOST_STATES:
            self.problem(range(len(self.number)), "there are too many paths to follow", self.index.module)
            new = frozenset(list(new)[:MOST_STATES])
        for trace in self._traces:
            trace.update(new)
        return new

    def problem(self, numbers: Iterable[int], why: str, node: cst.CSTNode, rule: int = 0) -> None:
        for number in numbers:
            if not any(n == number and p.node is node and p.message == why for n, p in self.found.problems):
                self.found.problems.append((number, CannotFollow(why, node, rule)))
