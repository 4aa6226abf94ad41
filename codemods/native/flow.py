"""Run a file on states instead of data: every path, through all its functions, with what each event does to gradients.

What comes out is either a list of problems, or the places where the native program needs ``unscale_`` and ``update``.
"""

from __future__ import annotations

from functools import partial
from typing import Sequence

import libcst as cst

from ..tree import children
from .effects import BACKWARDS, GRADIENT_EVENTS, MOST_STATES, Effects
from .events import Happening
from .loop_shapes import clears_one, only_clears, runs_at_least_once
from .objects import Entity
from .paths import NOWHERE, Findings, Out, State, States, joined
from .states import PREPARED, Event, Gradients
from .values import ClassValue, FunctionValue, Imported

_DEEPEST = 25


class Flow(Effects):
    """One run. Build it and call :meth:`run`."""

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
        if self.setup.skips and self._leaves_a_step(node):
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
        if self.setup.early and self._only_looks(node):
            states = self.touch(node, self._looked_at(node), states)
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

    def _only_looks(self, node: cst.If) -> bool:
        """Return whether all that an ``if`` does to gradients is to read or change them."""
        is_elif = isinstance(self.index.parent.get(node), cst.If)
        return not is_elif and not self._inside and self.kinds.of(node) == GRADIENT_EVENTS

    def _looked_at(self, node: cst.If) -> list[Entity] | None:
        """Return the optimizers whose gradients an ``if`` reads or changes; None if it may be any."""
        found: list[Entity] = []
        for each in self.index.walk(node):
            for happening in self.events.at.get(each, ()):
                if happening.optimizers is None:
                    return None
                found += [owner for owner in happening.optimizers if owner not in found]
            if isinstance(each, cst.Call) and any(
                self.kinds.of_function(f) for f, _ in self.events.solved.functions_of(each)
            ):
                return None
        return found

    def _one_steps(self, body: cst.BaseSuite, first: Out, other: cst.BaseSuite, second: Out) -> Out:
        """Of two branches, one steps and the other leaves the step out: then that one updates the scale at its end."""
        for suite, mine, theirs in ((body, first, second), (other, second, first)):
            for number in range(len(self.setup.optimizers)):
                here, there = ({s.gradients[number] for s in out.end} for out in (mine, theirs))
                if here and here <= PREPARED and there and not there & PREPARED:
                    last = suite.body[-1]
                    line = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
                    ended = self.skip(line, True, mine.end)
                    mine = Out(ended, mine.breaks, mine.continues, mine.returns)
            if suite is body:
                first = mine
            else:
                second = mine
        return joined(first, second)

    def _leaves_a_step(self, node: cst.CSTNode) -> bool:
        """Return whether ``node`` leaves the loop or function that steps."""
        if isinstance(node, cst.Return):
            function = self.index.function(node)
            return function is not None and self._steps_itself(function.body)
        if not isinstance(node, (cst.Break, cst.Continue)):
            return False
        loop = next(each for each in self.index.ancestors(node) if isinstance(each, (cst.For, cst.While)))
        return bool(self.kinds.of(loop.body) & {Event.STEP, *BACKWARDS})

    def _steps_itself(self, body: cst.CSTNode) -> bool:
        return any(h.event is Event.STEP for each in self.index.walk(body) for h in self.events.at.get(each, ()))

    def skip(self, node: cst.CSTNode, is_behind: bool, states: States) -> States:
        """A step is left out at ``node``: there the scale is updated, for every optimizer that was prepared for one."""
        seen = {each for state in states for each in enumerate(state.gradients)}
        self.found.leaving.setdefault((node, is_behind), set()).update(seen)
        for number in range(len(self.setup.optimizers)):
            if any(state.gradients[number] in PREPARED for state in states):
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
        if kinds == GRADIENT_EVENTS:
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
            if new == states or len(new) > MOST_STATES:
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


_OPEN = {Gradients.UNSCALED, Gradients.STEPPED, Gradients.PENDING}
