"""Turn a decision into edits: the native program of one training loop."""

from __future__ import annotations

import libcst as cst

from .collapse import Branches, Pair
from .decision import Decision, Facts, is_bfloat16
from .draft import Draft
from .events import reduced
from .half_calls import plain_backward, plain_clip
from .index import Index, code_of
from .initialization import Initialization
from .objects import Entity
from .problem import CannotFollow
from .schedules import guard_schedules
from .sites import ScaleLoss
from .spelling import Spelling, parenthesized, statement, updates
from .states import Gradients


class Emitter:
    """Writes one loop into a draft."""

    def __init__(self, decision: Decision, facts: Facts, spelling: Spelling, draft: Draft) -> None:
        self.decision = decision
        self.facts = facts
        self.index: Index = facts.index
        self.spelling = spelling
        self.draft = draft
        half = decision.loop.initialize[0].half
        self.clips = half.clips if half is not None else []
        self.branches = Branches(facts.events, decision.loop.calls, decision.loop.blocks, self.clips)
        self.start = Initialization(decision, facts, spelling, draft)
        #: statement that is left out → the equal one that stays
        self.instead: dict[cst.CSTNode, cst.CSTNode] = {}

    def emit(self) -> None:
        """Write everything."""
        self.start.emit()
        self._pairs()
        for block in self.decision.loop.blocks:
            self._block(block)
        if not (self.decision.is_plain or is_bfloat16(self.facts.target)):
            self._plain_backwards()
            self._unscales()
            self._steps()
            self._resets()
            self._skips()
        self._master_params()
        self._clip_master_grads()
        if not self.decision.is_plain:
            self._regions()

    # -- branches ------------------------------------------------------------------------------------------------

    def _pairs(self) -> None:
        for node in self.index.nodes:
            if not isinstance(node, cst.If):
                continue
            truth = self.facts.conditions.truth(node.test, self.decision.facts)
            if truth is None or not self._is_guard(node, truth):
                continue
            pair = self.branches.pair(node, truth)
            if pair is not None and self._concerns_loop(pair):
                self._collapse(pair)

    def _concerns_loop(self, pair: Pair) -> bool:
        mine = {block.block for block in self.decision.loop.blocks}
        masters = {call.call for call in self.decision.loop.calls if call.name == "master_params"} | set(self.clips)
        return any(each in mine or each in masters for line in pair.scaled.body for each in self.index.walk(line))

    def _is_guard(self, node: cst.If, truth: bool) -> bool:
        """Return whether the test of ``node`` is the condition under which amp was initialized, and nothing more."""
        if self.facts.conditions.is_availability(node.test):
            return True
        mine = set(self.facts.conditions.conjuncts(node.test, truth))
        known = [atom for atom in mine if not self._is_availability_atom(atom.left)]
        return bool(known) and set(known) == set(self.decision.guard.facts)

    def _is_availability_atom(self, text: str) -> bool:
        return text.partition("@")[0] in self.facts.conditions.available

    def _collapse(self, pair: Pair) -> None:
        is_elif = isinstance(self.index.parent.get(pair.node), cst.If)
        if is_elif:
            return
        if pair.has_master_params:
            self.draft.dropped.add(pair.scaled)
            self.draft.unwrap("AMP107", pair.node, pair.plain)
            for scaled, plain in pair.statements:
                self.instead[scaled] = plain
                for call in self.index.walk(plain):
                    if isinstance(call, cst.Call) and self._is_backward(call):
                        self._scale_receiver(call, self._scaler_of_pair(pair), "AMP102")
        else:
            self.draft.dropped.add(pair.plain)
            self.draft.unwrap("AMP107", pair.node, pair.scaled)

    def _is_backward(self, call: cst.Call) -> bool:
        return isinstance(call.func, cst.Attribute) and call.func.attr.value == "backward"

    def _scaler_of_pair(self, pair: Pair) -> int:
        for line in pair.scaled.body:
            for node in self.index.walk(line):
                for block in self.decision.loop.blocks:
                    if node is block.block:
                        return self._number(block)
        return 0

    # -- losses --------------------------------------------------------------------------------------------------

    def _number(self, block: ScaleLoss) -> int:
        return self.decision.scaler_of.get(block.entities[0].value, 0)

    def _block(self, site: ScaleLoss) -> None:
        self.draft.converted.add(site.call.func)
        if not isinstance(site.block, cst.With):
            self._backward_call(site)
            return
        uses = [n for n in self.index.walk(site.block.body) if isinstance(n, cst.Name) and n.value == site.alias]
        receivers = [each for each in uses if self._is_receiver(each)]
        loss = self._hoisted(site.loss, site.block, site.function)
        if any(self._is_reduced(each) for each in receivers) and not self.decision.is_plain:
            # Apex took the loss to float32; summing many numbers in half would lose most of them
            loss = cst.parse_expression(f"{code_of(parenthesized(loss))}.float()")
        scaled = self._scaled(loss, self._number(site), site.function)
        self.draft.unwrap("AMP102", site.block, site.block.body)
        if len(uses) == 1 and len(receivers) == 1 and not self._is_read_elsewhere(site):
            self.draft.replace("AMP102", receivers[0], scaled)
        else:
            self.draft.before("AMP102", site.block, statement(f"{site.alias} = {code_of(scaled)}"))

    def _backward_call(self, site: ScaleLoss) -> None:
        loss = self._hoisted(site.loss, self.index.statement(site.call), site.function)
        scaled = self._scaled(loss, self._number(site), site.function)
        self.draft.replace("AMP102", site.call, plain_backward(site, code_of(scaled)))

    def _hoisted(
        self, loss: cst.BaseExpression, anchor: cst.CSTNode, function: cst.FunctionDef | None
    ) -> cst.BaseExpression:
        """Give a loss that is computed where it's scaled a statement of its own, under autocast."""
        if self.decision.is_plain or not self.facts.regions.computing.computes(loss):
            return loss
        if not isinstance(self.index.block(anchor), (cst.Module, cst.IndentedBlock)):
            raise CannotFollow("the loss is computed in a block that is written on one line", anchor, 19)
        name = next((each for each in ("loss", "unscaled_loss", "amp_loss") if self._is_free_in(each, function)), None)
        if name is None:
            raise CannotFollow("no name is free for the loss", anchor, 19)
        header = self.spelling.autocast(self.start.switch(function))
        line = cst.SimpleStatementLine([statement(f"{name} = {code_of(loss)}")])
        self.draft.before("AMP103", anchor, header.with_changes(body=cst.IndentedBlock([line])))
        return cst.Name(name)

    def _is_free_in(self, name: str, function: cst.FunctionDef | None) -> bool:
        where = self.index.module if function is None else function
        return not any(isinstance(node, cst.Name) and node.value == name for node in self.index.walk(where))

    def _is_read_elsewhere(self, site: ScaleLoss) -> bool:
        """Return whether the scaled loss is read behind its block, or has the name of the loss itself."""
        if isinstance(site.loss, cst.Name) and site.loss.value == site.alias:
            return True
        others = [each.block for each in self.decision.loop.blocks if each.alias == site.alias]
        scope = self.index.module if site.function is None else site.function.body
        return any(
            isinstance(node, cst.Name)
            and node.value == site.alias
            and not any(self.index.holds(block, node) for block in others)
            and not isinstance(self.index.parent.get(node), (cst.AssignTarget, cst.AsName))
            for node in self.index.walk(scope)
        )

    def _is_reduced(self, use: cst.Name) -> bool:
        """``scaled_loss.mean().backward()``"""
        part = self.index.parent.get(use)
        return isinstance(part, cst.Attribute) and part.attr.value != "backward"

    def _is_receiver(self, use: cst.Name) -> bool:
        for call in self.index.ancestors(use):
            if isinstance(call, cst.Call):
                if isinstance(call.func, cst.Attribute) and call.func.attr.value == "backward":
                    return reduced(call.func.value) is use
            elif not isinstance(call, cst.Attribute):
                return False
        return False

    def _scaled(self, loss: cst.BaseExpression, number: int, function: cst.FunctionDef | None) -> cst.BaseExpression:
        if self.decision.is_plain or is_bfloat16(self.facts.target):
            return parenthesized(loss)
        return cst.parse_expression(f"{self.start.scaler(number, function)}.scale({code_of(loss)})")

    def _scale_receiver(self, call: cst.Call, number: int, code: str) -> None:
        assert isinstance(call.func, cst.Attribute)
        if self.decision.is_plain or is_bfloat16(self.facts.target):
            return
        receiver = call.func.value
        if self.facts.regions.computing.computes(receiver):
            raise CannotFollow("the loss of a plain backward is computed where backward is called", call, 19)
        self.draft.replace(
            code, receiver, self._scaled(receiver.with_changes(lpar=[], rpar=[]), number, self.index.function(call))
        )

    def _plain_backwards(self) -> None:
        for call, number in self.decision.flow.scaled_plain.items():
            assert isinstance(call, cst.Call)
            if not self.draft.is_gone(call):
                self._scale_receiver(call, number, "AMP102")

    # -- steps ---------------------------------------------------------------------------------------------------

    def _unscales(self) -> None:
        written: set[tuple[cst.CSTNode, int]] = set()
        for (anchor, number), seen in self.decision.flow.touches.items():
            if Gradients.SCALED not in seen:
                continue
            value = self.facts.optimizers[number].value
            place = self._place(anchor)
            if (place, number) in written:
                continue  # branches that collapsed into one
            written.add((place, number))
            optimizer = self._spelled(value, self.index.function(place))
            scaler = self.start.scaler(self.decision.scaler_of[value], self.index.function(place))
            self.draft.before("AMP105", place, statement(f"{scaler}.unscale_({optimizer})"))

        for block, number in sorted(self.decision.flow.eager, key=lambda each: self.index.order[each[0]]):
            site = self.facts.events.blocks[block]
            value = self.facts.optimizers[number].value
            if value not in self.decision.scaler_of:
                continue
            if self.draft.is_gone(block):
                raise CannotFollow("`unscale_` has no place behind a block that collapses", block, 15)
            scaler = self.start.scaler(self.decision.scaler_of[value], site.function)
            unscale = statement(f"{scaler}.unscale_({code_of(_optimizer_argument(site))})")
            self.draft.after("AMP105", block, unscale)

    def _place(self, anchor: cst.CSTNode) -> cst.CSTNode:
        for old, new in self.instead.items():
            if self.index.holds(old, anchor):
                anchor = self._counterpart(old, new, anchor)
                break
        parent = self.index.parent.get(anchor)
        if isinstance(anchor, cst.If) and isinstance(parent, cst.If):
            raise CannotFollow("`unscale_` can't be put before an `elif`", anchor, 15)
        if isinstance(anchor, cst.While):
            raise CannotFollow("`unscale_` can't be put before the test of a `while`", anchor, 15)
        return anchor

    def _counterpart(self, old: cst.CSTNode, new: cst.CSTNode, anchor: cst.CSTNode) -> cst.CSTNode:
        """Return the statement in ``new`` that stands where ``anchor`` stands in ``old``, which says the same."""
        statements = (cst.BaseSmallStatement, cst.BaseCompoundStatement)
        mine, theirs = ([n for n in self.index.walk(each) if isinstance(n, statements)] for each in (old, new))
        places = [n for n, each in enumerate(mine) if each is anchor]
        if len(mine) != len(theirs) or not places:
            raise CannotFollow("`unscale_` has no place in the branch that stays", anchor, 15)
        return theirs[places[0]]

    def _spelled(self, value: object, function: cst.FunctionDef | None) -> str:
        """Return how ``function`` calls the optimizer."""
        for block in self.decision.loop.blocks:
            if block.function is function and block.entities[0].value == value:
                return code_of(_optimizer_argument(block))
        for node, number in self.decision.flow.steps.items():
            if self.index.function(node) is function and self.facts.optimizers[number].value == value:
                assert isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute)
                return code_of(node.func.value)
        where = "the module" if function is None else f"`{function.name.value}`"
        raise CannotFollow(f"the optimizer has no name in {where}", self.decision.loop.first, 15)

    def _steps(self) -> None:
        flow = self.decision.flow
        for node, number in flow.steps.items():
            assert isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute)
            line = self.index.statement(node)
            if not (isinstance(line, cst.Expr) and line.value is node):
                raise CannotFollow("what the step returns is used", node, 8)
            value = self.facts.optimizers[number].value
            scaler = self.start.scaler(self.decision.scaler_of[value], self.index.function(node))
            step = statement(f"{scaler}.step({code_of(node.func.value)})")
            self.draft.replace("AMP104", line, step, *updates(scaler, self.decision.scale))
            if self.facts.target.guard_scheduler:
                name = "scale" if self._is_free_in("scale", self.index.function(node)) else "scale_before_step"
                guard_schedules(line, scaler, name, self.index, self.draft)

    def _resets(self) -> None:
        for handler, number in self.decision.flow.resets:
            value = self.facts.optimizers[number].value
            if value not in self.decision.scaler_of or not isinstance(handler, cst.ExceptHandler):
                continue
            scaler = self.start.scaler(self.decision.scaler_of[value], self.index.function(handler))
            first = _first_statement(handler.body)
            self.draft.before("AMP104", first, statement(f"{scaler}.update({scaler}.get_scale())"))

    def _skips(self) -> None:
        for node, is_behind, number in sorted(self.decision.flow.skips, key=lambda each: self.index.order[each[0]]):
            value = self.facts.optimizers[number].value
            if value not in self.decision.scaler_of:
                continue
            scaler = self.start.scaler(self.decision.scaler_of[value], self.index.function(node))
            put = self.draft.after if is_behind else self.draft.before
            put("AMP104", node, *updates(scaler, self.decision.scale))

    def _master_params(self) -> None:
        for call in self.decision.loop.calls:
            if call.name != "master_params":
                continue
            self.draft.converted.add(call.call.func)
            if self.draft.is_gone(call.call):
                continue
            optimizer = code_of(call.call.args[0].value)
            name = "group" if self._is_free("group") else "param_group"
            text = f'(p for {name} in {optimizer}.param_groups for p in {name}["params"])'
            assert call.entity is not None
            parameters = self._model_parameters(call.call, call.entity) or text
            self.draft.replace("AMP106", call.call, cst.parse_expression(parameters))

    def _clip_master_grads(self) -> None:
        for call in self.clips:
            assert isinstance(call.func, cst.Attribute)
            entity = self.facts.events.optimizer(call.func.value)
            if entity is None or self.draft.is_gone(call):
                continue
            function = code_of(self.spelling.torch.expression("torch.nn.utils.clip_grad_norm_"))
            text = f'(p for group in {code_of(call.func.value)}.param_groups for p in group["params"])'
            clip = plain_clip(call, function, self._model_parameters(call, entity) or text)
            self.draft.replace("AMP106", call, clip)

    def _model_parameters(self, call: cst.Call, entity: Entity) -> str | None:
        """Return ``model.parameters()`` where the optimizer was built from just that, by a name that is seen here."""
        reach = self.facts.events.reach
        for node in self.index.nodes:
            if not (isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and not node.args):
                continue
            model = node.func.value
            if node.func.attr.value != "parameters" or not isinstance(model, cst.Name):
                continue
            if self.index.function(node) is not self.index.function(call):
                continue
            is_seen = self.index.scope(model) is self.index.scope(call) and self.index.before(node, call)
            if is_seen and reach.has_all(entity, self.facts.events.objects.values(model)):
                return f"{model.value}.parameters()"
        return None

    def _is_free(self, name: str) -> bool:
        return not any(isinstance(node, cst.Name) and node.value == name for node in self.index.nodes)

    # -- regions -------------------------------------------------------------------------------------------------

    def _regions(self) -> None:
        for region in self.decision.regions:
            lines = [line for line in self.facts.regions.lines_of(region) if not self._goes(line)]
            if not lines:
                continue
            header = self.spelling.autocast(self.start.switch(self.index.function(region.first)))
            self.draft.wrap("AMP103", lines[0], lines[-1], header)

        for line, argument in self.decision.hoisted:
            loss = self._hoisted(argument, line, self.index.function(line))
            self.draft.replace("AMP103", argument, loss)

    def _goes(self, line: cst.CSTNode) -> bool:
        smalls = line.body if isinstance(line, cst.SimpleStatementLine) else [line]
        return all(self.draft.is_gone(small) for small in smalls)


def _optimizer_argument(block: ScaleLoss) -> cst.BaseExpression:
    if isinstance(block.optimizers, (cst.List, cst.Tuple)):
        return block.optimizers.elements[0].value
    return block.optimizers


def _first_statement(suite: cst.BaseSuite) -> cst.CSTNode:
    first = suite.body[0]
    if isinstance(first, cst.SimpleStatementLine):
        return first.body[0]
    return first
