"""Run a file on states instead of data: every path, through all its functions, with what each event does to gradients.

What comes out is either a list of problems, or the places where the native program needs ``unscale_`` and ``update``.
"""

from __future__ import annotations

from functools import partial
from typing import Callable, Iterable, Sequence

import libcst as cst

from ..tree import children
from .assumptions import Assumptions
from .conditions import Conditions
from .events import Events, Happening
from .index import Index
from .kinds import Kinds
from .loop_shapes import clears_one, only_clears, runs_at_least_once
from .objects import Entity
from .paths import NOWHERE, Findings, Out, Setup, State, States, joined
from .problem import CannotFollow
from .sites import ScaleLoss
from .states import Event, Gradients, Wrong, after
from .values import ClassValue, FunctionValue, Imported

_MOST_STATES = 600
_DEEPEST = 25
_GRADIENT_EVENTS = {Event.TOUCH}
_BACKWARDS = {Event.SCALED_BACKWARD, Event.PLAIN_BACKWARD}


class Flow:
    """One run. Build it and call :meth:`run`."""

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

    def run(self, entry_points: Sequence[cst.FunctionDef]) -> Findings:
        """Run the module, then ``entry_points`` in any order and any number of times."""
        start = frozenset([State((Gradients.EMPTY,) * len(self.setup.optimizers))])
        out = self.block(self.index.module.body, start)
        states = out.end
        while entry_points:
            new = states
            for function in entry_points:
                new |= self.function(function, None, states)
            if new == states:
                break
            states = new
        return self.found

    # -- blocks and statements -----------------------------------------------------------------------------------

    def block(self, lines: Sequence[cst.CSTNode], states: States) -> Out:
        breaks = continues = returns = NOWHERE
        for line in lines:
            if not states:
                break
            out = self.statement(line, states)
            states = out.end
            breaks, continues, returns = breaks | out.breaks, continues | out.continues, returns | out.returns
        return Out(states, breaks, continues, returns)

    def suite(self, node: cst.CSTNode | None, states: States) -> Out:
        if node is None:
            return Out(states)
        if isinstance(node, (cst.Else, cst.Finally)):
            node = node.body
        assert isinstance(node, cst.BaseSuite)
        return self.block(list(node.body), states)

    def statement(self, node: cst.CSTNode, states: States) -> Out:
        if isinstance(node, cst.SimpleStatementLine):
            return self.block(node.body, states)
        self._touched = {each for each in self._touched if each[0] is not node}
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            return self.block(list(node.body.body), states) if isinstance(node, cst.ClassDef) else Out(states)
        if isinstance(node, cst.If):
            return self.if_(node, states)
        if isinstance(node, (cst.For, cst.While)):
            return self.loop(node, states)
        if isinstance(node, cst.With):
            return self.with_(node, states)
        if isinstance(node, (cst.Try, cst.TryStar)):
            return self.try_(node, states)
        states = self.evaluate(node, states)
        if self.setup.skips and isinstance(node, (cst.Break, cst.Continue)):
            states = self.skip(node, False, states)
        if isinstance(node, cst.Return):
            return Out(returns=states)
        if isinstance(node, cst.Raise):
            return Out()
        if isinstance(node, cst.Break):
            return Out(breaks=states)
        if isinstance(node, cst.Continue):
            return Out(continues=states)
        return Out(self.forget(node, states))

    def forget(self, node: cst.CSTNode, states: States) -> States:
        """Drop what was assumed about names that ``node`` binds anew."""
        return self._mapped(states, lambda s: State(s.gradients, self.assumptions.without(s.assumed, node)))

    def if_(self, node: cst.If, states: States) -> Out:
        states = self.forget(node.test, self.evaluate(node.test, states))
        yes: set[State] = set()
        no: set[State] = set()
        correlated = self.assumptions.is_correlated(node)
        for state in states:
            truth = self.conditions.truth(node.test, [*self.setup.facts, *state.assumed])
            for branch, value in ((yes, True), (no, False)):
                if truth is not (not value):
                    branch.add(self._assuming(state, node, value) if correlated and truth is None else state)
        first = self.suite(node.body, frozenset(yes))
        orelse = node.orelse
        if self.setup.skips and isinstance(orelse, cst.Else):
            return self._one_steps(node.body, first, orelse.body, self.suite(orelse, frozenset(no)))
        second = (
            self.if_(orelse, frozenset(no))
            if isinstance(orelse, cst.If) and no
            else self.suite(None if isinstance(orelse, cst.If) else orelse, frozenset(no))
        )
        return joined(first, second)

    def _one_steps(self, body: cst.BaseSuite, first: Out, other: cst.BaseSuite, second: Out) -> Out:
        """Of two branches, one steps and the other leaves the step out: then that one updates the scale at its end."""
        for suite, mine, theirs in ((body, first, second), (other, second, first)):
            for number in range(len(self.setup.optimizers)):
                here, there = ({s.gradients[number] for s in out.end} for out in (mine, theirs))
                if here and here <= _SKIPPED and there and not there & _SKIPPED:
                    last = suite.body[-1]
                    line = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
                    ended = self.skip(line, True, mine.end)
                    mine = Out(ended, mine.breaks, mine.continues, mine.returns)
            if suite is body:
                first = mine
            else:
                second = mine
        return joined(first, second)

    def skip(self, node: cst.CSTNode, is_behind: bool, states: States) -> States:
        """A step is left out at ``node``: there the scale is updated, for every optimizer that was prepared for one."""
        for number in range(len(self.setup.optimizers)):
            if any(state.gradients[number] in _SKIPPED for state in states):
                self.found.skips.add((node, is_behind, number))
                mine = self.setup.scaler_of[number]
                others = [n for n, s in enumerate(self.setup.scaler_of) if s == mine and n != number]
                changes = {**dict.fromkeys(others, Event.UPDATE), number: Event.SKIP}
                states = self._mapped(states, partial(self._changed, changes=changes, node=node))
        return states

    def _assuming(self, state: State, node: cst.If, value: bool) -> State:
        return State(state.gradients, state.assumed | frozenset(self.conditions.conjuncts(node.test, value)))

    def loop(self, node: cst.For | cst.While, states: States) -> Out:
        head = node.iter if isinstance(node, cst.For) else node.test
        states = self.evaluate(head, states)
        kinds = self.kinds.of(node.body)
        if kinds == _GRADIENT_EVENTS:
            return Out(self.whole(node, states))
        endless = isinstance(node, cst.While) and isinstance(node.test, cst.Name) and node.test.value == "True"
        before, breaks, returns = states, NOWHERE, NOWHERE
        ends = NOWHERE
        while True:
            out = self.suite(node.body, self.forget(node, states))
            if isinstance(node, cst.While):
                out = Out(self.evaluate(node.test, out.end | out.continues), out.breaks, NOWHERE, out.returns)
            breaks, returns = breaks | out.breaks, returns | out.returns
            ends = ends | out.end | out.continues
            new = before | ends
            if new == states or len(new) > _MOST_STATES:
                break
            states = new
        leaving = ends if runs_at_least_once(node) else states
        after_loop = self.suite(node.orelse, NOWHERE if endless else leaving)
        return Out(after_loop.end | breaks, after_loop.breaks, after_loop.continues, after_loop.returns | returns)

    def whole(self, loop: cst.For | cst.While, states: States) -> States:
        """A loop over parameters that only looks at gradients is one event: it clears them, or it touches them."""
        owners = self.events.owners(loop.iter) if isinstance(loop, cst.For) else None
        if isinstance(loop, cst.For) and only_clears(loop) and not self._inside:
            models = self.events.reach.models_in(loop.iter)
            covered = tuple(e for e in self.setup.optimizers if self.events.reach.is_covered(e, models))
            return self.apply(Happening(Event.CLEAR, loop, covered), states) if covered else states
        return self.touch(loop, owners, states)

    def with_(self, node: cst.With, states: States) -> Out:
        site = self.events.blocks.get(node)
        if site is None:
            for item in node.items:
                states = self.evaluate(item.item, states)
            if self._may_swallow(node):
                return self._caught_around(node, states)
            return self.suite(node.body, states)
        self.found.blocks.add(node)
        if self._inside:
            self.problem(range(len(self.number)), "one block of `amp.scale_loss` stands in another", node, 15)
        states = self.evaluate(site.loss, states)
        self._inside.append((site, states))
        out = self.suite(node.body, states)
        self._inside.pop()
        if not self.setup.eager or site.delay is not None:
            return out
        for number in sorted(self.number[each.value] for each in site.entities):
            self.found.eager.add((node, number))
            change = partial(self._changed, changes={number: Event.TOUCH}, node=node)
            out = Out(self._mapped(out.end, change), out.breaks, out.continues, out.returns)
        return out

    def _may_swallow(self, node: cst.With) -> bool:
        """Return whether an exception may end at this block: ``suppress``, or a class of this file that says so."""
        for item in node.items:
            if not isinstance(item.item, cst.Call):
                continue
            for value in self.events.solved.of(item.item.func):
                if isinstance(value, Imported) and value.path.endswith("suppress"):
                    return True
                if isinstance(value, ClassValue) and self._exit_returns(value.node):
                    return True
                if isinstance(value, FunctionValue) and any(
                    isinstance(n, cst.Try) for n in self.index.walk(value.node.body)
                ):
                    return True
        return False

    def _exit_returns(self, owner: cst.ClassDef) -> bool:
        method = self.events.solved.classes.method(owner, "__exit__")
        returns = (
            [n.value for n in self.index.walk(method.body) if isinstance(n, cst.Return)] if method is not None else []
        )
        return any(v is not None and not (isinstance(v, cst.Name) and v.value in ("None", "False")) for v in returns)

    def _caught_around(self, node: cst.With, states: States) -> Out:
        self._traces.append(set(states))
        out = self.suite(node.body, states)
        caught = self.caught(frozenset(self._traces.pop()), node)
        return Out(out.end | caught, out.breaks, out.continues, out.returns)

    def try_(self, node: cst.Try | cst.TryStar, states: States) -> Out:
        self._traces.append(set(states))
        body = self.suite(node.body, states)
        raised = frozenset(self._traces.pop())
        ended = self.suite(node.orelse, body.end)
        out = Out(ended.end, body.breaks | ended.breaks, body.continues | ended.continues, body.returns | ended.returns)
        for handler in node.handlers:
            out = joined(out, self.suite(handler.body, self.caught(raised, handler)))
        if node.finalbody is None:
            return out
        parts = [self.suite(node.finalbody, each) for each in (out.end, out.breaks, out.continues, out.returns)]
        return Out(*(part.end for part in parts))

    def caught(self, states: States, handler: cst.CSTNode) -> States:
        """The states in a handler. Only one that goes on matters; one that raises again has no end."""
        for number in range(len(self.setup.optimizers)):
            if self.setup.resets and any(s.gradients[number] in _OPEN for s in states):
                self.found.resets.add((handler, number))
        resets = self.setup.resets and isinstance(handler, cst.ExceptHandler)
        event = Event.CAUGHT if resets else Event.CAUGHT_OPEN
        return self._mapped(states, lambda s: self._changed(s, dict.fromkeys(self.number.values(), event), handler))

    # -- expressions ---------------------------------------------------------------------------------------------

    def evaluate(self, node: cst.CSTNode, states: States) -> States:
        """Run an expression or small statement: arguments before calls, in source order."""
        if not states or not self.kinds.of(node):
            return states
        if isinstance(node, (cst.FunctionDef, cst.Lambda)):
            return states
        if isinstance(node, (cst.IfExp, cst.BooleanOperation, cst.BaseComp)):
            return self._maybe(node, states)
        if isinstance(node, cst.Assign) and clears_one(node):
            return self.touch(node, None, self.evaluate(node.value, states), raw=True)
        for child in children(node):
            states = self.evaluate(child, states)
        for happening in self.events.at.get(node, ()):
            if happening.event is not Event.NEW:
                states = self.apply(happening, states)
        if isinstance(node, cst.Call):
            states = self.call(node, states)
            for happening in self.events.at.get(node, ()):
                if happening.event is Event.NEW:
                    states = self.apply(happening, states)
        return states

    def _maybe(self, node: cst.CSTNode, states: States) -> States:
        result = states
        for child in children(node):
            result = result | self.evaluate(child, result)
        return result

    def call(self, call: cst.Call, states: States) -> States:
        functions = [f for f, _ in self.events.solved.functions_of(call) if self.kinds.of_function(f)]
        if not functions:
            return states
        result = states if len(functions) < len(list(self.events.solved.functions_of(call))) else NOWHERE
        for function in functions:
            result = result | self.function(function, call, states)
        return result

    def function(self, function: cst.FunctionDef, call: cst.Call | None, states: States) -> States:
        if any(function is each for each, _ in self._frames) or len(self._frames) > _DEEPEST:
            self.problem(range(len(self.number)), f"`{function.name.value}` calls itself", function)
            return states
        self._frames.append((function, call))
        out = self.suite(function.body, states)
        self._frames.pop()
        return out.end | out.returns

    # -- events --------------------------------------------------------------------------------------------------

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
            return None if is_simple and self.kinds.of(anchor) & _BACKWARDS else anchor
        for _function, call in reversed(self._frames):
            if call is not None and self.index.function(call) in self.setup.holders:
                anchor = self.index.statement(call)
                return anchor if self.kinds.of(anchor) == _GRADIENT_EVENTS else None
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
        if len(new) > _MOST_STATES:
            self.problem(range(len(self.number)), "there are too many paths to follow", self.index.module)
            new = frozenset(list(new)[:_MOST_STATES])
        for trace in self._traces:
            trace.update(new)
        return new

    def problem(self, numbers: Iterable[int], why: str, node: cst.CSTNode, rule: int = 0) -> None:
        for number in numbers:
            if not any(n == number and p.node is node and p.message == why for n, p in self.found.problems):
                self.found.problems.append((number, CannotFollow(why, node, rule)))


_SKIPPED = {Gradients.UNSCALED, Gradients.PENDING}
_OPEN = {Gradients.UNSCALED, Gradients.STEPPED, Gradients.PENDING}
