"""The native program's scaler: made where ``amp.initialize`` stood, handed to whoever needs it, saved and loaded."""

from __future__ import annotations

import libcst as cst

from .decision import Decision, Facts, is_bfloat16
from .draft import Draft
from .enabled import Enabled
from .index import Index, code_of
from .loss_scales import ScaleWrite, scaler_number
from .placement import is_abstract, is_free
from .problem import CannotFollow
from .sites import Initialize
from .spelling import Spelling, statement
from .taking_out import take_out

#: what --keep-old-checkpoints calls: it takes Apex's state and GradScaler's
READS_BOTH = "scaler_state"
_NAMES = ("scaler", "grad_scaler", "amp_scaler", "amp_grad_scaler")


class Initialization:
    """Writes everything about the scaler but its use in the loop."""

    def __init__(self, decision: Decision, facts: Facts, spelling: Spelling, draft: Draft) -> None:
        self.decision = decision
        self.facts = facts
        self.index: Index = facts.index
        self.spelling = spelling
        self.draft = draft
        self.site: Initialize = decision.loop.initialize[0]
        self.enabled = Enabled(decision, facts)
        self.names = self._names()
        self._has_scaler = not (decision.is_plain or decision.infers or is_bfloat16(facts.target))

    def emit(self) -> None:
        """Write the scaler and take ``amp.initialize`` out."""
        for site in self.decision.loop.initialize:
            self.draft.converted.add(site.call.func)
            take_out(site, self.draft, self._returned_beside(site))
            self.draft.converted.update(call.func for call in (site.half.halves if site.half is not None else ()))
        self._state()
        self._scales()
        if self._has_scaler:
            self._create()
            self._thread()
            self._return()

    def scaler(self, number: int, function: cst.FunctionDef | None) -> str:
        """Return how ``function`` calls the scaler."""
        name = self.names[number]
        return f"{self._self_name(function)}.{name}" if self._has_attribute(function) else name

    def _self_name(self, function: cst.FunctionDef | None) -> str:
        around = function
        while around is not None:
            function, around = around, self.index.function(around)
        return function.params.params[0].name.value if function is not None and function.params.params else "self"

    def _has_attribute(self, function: cst.FunctionDef | None) -> bool:
        placement = self.decision.placement
        if not placement.attribute or function is None or function in placement.parameters:
            return False
        if placement.builder is not None and function is placement.builder.function:
            return False
        around = self.index.function(function)
        while around is not None:
            function, around = around, self.index.function(around)
        owner = self.index.class_of(function)
        return owner is not None and self.facts.solved.classes.family(owner) is placement.owner

    def switch(self, function: cst.FunctionDef | None) -> cst.BaseExpression | None:
        """Return the ``enabled=`` of autocast in ``function``; None where it's always on."""
        is_handed_on = self._has_scaler and self._gets_scaler(function)
        if self.enabled.is_constant and not is_handed_on:
            return None
        found = None if is_handed_on else self.enabled.in_function(function)
        if found is not None:
            return found
        if not self._has_scaler:
            where = "the module" if function is None else f"`{function.name.value}`"
            raise CannotFollow(f"whether amp is on can't be asked in {where}, which has no scaler", self.site.call, 9)
        return cst.parse_expression(f"{self.scaler(0, function)}.is_enabled()")

    def _gets_scaler(self, function: cst.FunctionDef | None) -> bool:
        """Return whether ``function`` has its scaler as a parameter, or is nested in one that does."""
        while function is not None:
            if function in self.decision.placement.parameters:
                return True
            function = self.index.function(function)
        return False

    # -- names ---------------------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        count = max(self.decision.scaler_of.values(), default=0) + 1
        base = next((name for name in _NAMES if is_free(name, self.index)), None)
        if base is None:
            raise CannotFollow("no name is free for the scaler", self.site.call)
        if count == 1:
            return [base]
        owners = [""] * count
        for each in self.decision.loop.optimizers:
            owners[self.decision.scaler_of.get(each.value, 0)] = each.name
        names = [_suffixed(base, owner, number) for number, owner in enumerate(owners)]
        if len(set(names)) < count or not all(is_free(name, self.index) for name in names):
            names = [f"{base}_{number}" for number in range(count)]
        return names

    # -- making the scaler -----------------------------------------------------------------------------------------

    def _create(self) -> None:
        guard = self.decision.guard
        placement = self.decision.placement
        if guard.is_once:
            if not placement.attribute:
                raise CannotFollow("a guard keeps amp from being initialized twice", self.site.call, 1)
            self._insert(self.site.statement, None if not self.decision.level.expression else self.enabled.level_test())
        else:
            for site in self.decision.loop.initialize:
                anchor: cst.CSTNode = guard.branches[0][0] if guard.branches else site.statement
                while isinstance(self.index.parent.get(anchor), cst.If) and isinstance(anchor, cst.If):
                    anchor = self.index.parent[anchor]  # an elif
                self._check_bound(anchor)
                self._insert(anchor, self.enabled.expression())
        if placement.attribute:
            self._default_in_constructors()

    def _check_bound(self, anchor: cst.CSTNode) -> None:
        """What switches amp on must be known before the ``if`` that the scaler is made in front of."""
        if anchor is self.site.statement:
            return
        parts = [test for test, _ in self.decision.guard.parts]
        level = self.decision.level.expression
        parts += [use.value for use in self.decision.loop.scales if isinstance(use, ScaleWrite)]
        for name in (
            each for part in [*parts, *([level] if level is not None else [])] for each in self.index.walk(part)
        ):
            parent = self.index.parent.get(name)
            if not isinstance(name, cst.Name) or (isinstance(parent, cst.Attribute) and parent.attr is name):
                continue
            binders = self.facts.solved.names.binders(name.value, self.index.scope(name))
            if any(self.index.holds(anchor, binder) for binder in binders):
                raise CannotFollow(f"`{name.value}` is bound under the guard of `amp.initialize`", self.site.call, 27)

    def _insert(self, anchor: cst.CSTNode, enabled: cst.BaseExpression | None) -> None:
        lines = []
        for number in range(len(self.names)):
            made = self.spelling.scaler(enabled, self.decision.scale, self._given(number))
            lines.append(statement(f"{self.scaler(number, self.site.function)} = {code_of(made)}"))
        self.draft.before("AMP101", anchor, *lines)

    def _given(self, number: int) -> dict[str, cst.BaseExpression]:
        """Return what the program sets on the loss scaler right behind ``amp.initialize``."""
        loop = self.decision.loop
        writes = [use for use in loop.scales if isinstance(use, ScaleWrite)]
        mine = [use for use in writes if scaler_number(use, loop, self.decision.scaler_of) == number]
        return {**self.decision.scale.given, **{use.argument: use.value for use in mine}}

    def _default_in_constructors(self) -> None:
        """A method may run that needs the scaler before the one that makes it: then it's a disabled one."""
        home = self.decision.placement.home
        if home is None or home.name.value == "__init__":
            return
        owner = self.index.class_of(home)
        assert owner is not None
        classes = self.facts.solved.classes
        constructors = {
            init for each in classes.members(owner) for init in [classes.method(each, "__init__")] if init is not None
        }
        if not constructors and self.decision.guard.branches:
            raise CannotFollow(
                f"`{owner.name.value}` has no `__init__` to keep a disabled scaler in", self.site.call, 26
            )
        for constructor in constructors:
            if self._calls_super(constructor, constructors):
                continue
            disabled = code_of(self.spelling.scaler(cst.Name("False")))
            lines = [statement(f"{self._self_name(constructor)}.{name} = {disabled}") for name in self.names]
            self.draft.before("AMP109", _first_place(constructor), *lines)

    def _calls_super(self, constructor: cst.FunctionDef, others: set[cst.FunctionDef]) -> bool:
        for node in self.index.walk(constructor.body):
            if isinstance(node, cst.Call):
                found = {function for function, _ in self.facts.solved.functions_of(node)}
                if found & (others - {constructor}):
                    return True
        return False

    # -- handing it on -----------------------------------------------------------------------------------------------

    def _thread(self) -> None:
        placement = self.decision.placement
        for function in placement.parameters:
            disabled = code_of(self.spelling.scaler(cst.Name("False")))
            for name in self.names:
                self.draft.append("AMP109", function.params, _parameter(name))
                if is_abstract(function):
                    continue
                default = statement(f"{name} = {name} or {disabled}")
                self.draft.before("AMP109", _first_place(function), default)
        for call in placement.calls:
            self._pass_on(call)

    def _pass_on(self, call: cst.Call) -> None:
        function = self.index.function(call)
        for number, name in enumerate(self.names):
            value = self.scaler(number, function)
            equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
            self.draft.append("AMP109", call, cst.Arg(cst.parse_expression(value), cst.Name(name), equal))

    def _returned_beside(self, site: Initialize) -> tuple[str, ...]:
        """Return what stands beside models and optimizers where the result of ``amp.initialize`` is returned."""
        builder = self.decision.placement.builder
        return tuple(self.names) if builder is not None and builder.returned is site.call and self._has_scaler else ()

    def _return(self) -> None:
        """A function that only builds model and optimizer returns the scaler beside them."""
        builder = self.decision.placement.builder
        if builder is None:
            return
        for number, name in enumerate(self.names):
            if isinstance(builder.returned, cst.Tuple):
                self.draft.append("AMP109", builder.returned, cst.Element(cst.Name(name)))
            for target in builder.targets:
                caller = self.index.function(target)
                self.draft.append("AMP109", target, cst.Element(cst.parse_expression(self.scaler(number, caller))))

    # -- asking it -------------------------------------------------------------------------------------------------

    def _scales(self) -> None:
        """``_amp_state.loss_scalers[0].loss_scale()`` becomes ``scaler.get_scale()``."""
        for use in self.decision.loop.scales:
            if not self._has_scaler:
                raise CannotFollow("a loss scale is asked for, and the native program has no scaler", use.node, 6)
            self.draft.converted.add(use.node)
            if isinstance(use, ScaleWrite):
                self.draft.remove("AMP113", use.node)
                continue
            number = scaler_number(use, self.decision.loop, self.decision.scaler_of)
            self.draft.replace(
                "AMP113", use.node, cst.parse_expression(f"{self.scaler(number, use.function)}.get_scale()")
            )

    # -- saving it -------------------------------------------------------------------------------------------------

    def _state(self) -> None:
        for each in self.decision.loop.calls:
            if each.name not in ("state_dict", "load_state_dict"):
                continue
            if not self._has_scaler:
                raise CannotFollow("amp's state is saved or loaded, and the native program has no scaler", each.call, 9)
            if len(self.names) > 1:
                raise CannotFollow("amp's state is saved or loaded, and there are several scalers", each.call, 9)
            self.draft.converted.add(each.call.func)
            if each.call.args and each.name == "state_dict":
                raise CannotFollow("`amp.state_dict` gets arguments", each.call, 9)
            method = cst.parse_expression(f"{self.scaler(0, each.function)}.{each.name}")
            self.draft.replace("AMP108", each.call.func, method)
            if each.name == "load_state_dict" and self.facts.target.keep_old_checkpoints and each.call.args:
                state = each.call.args[0].value
                self.draft.replace("AMP108", state, cst.parse_expression(f"{READS_BOTH}({code_of(state)})"))
            elif each.name == "load_state_dict":
                self.draft.note(
                    "AMP108",
                    each.call,
                    "checkpoints that Apex wrote don't load here any more (`KeyError: 'scale'`)",
                    "convert old ones with `python -m amp_migrate.convert OLD NEW`",
                )


def _suffixed(base: str, owner: str, number: int) -> str:
    suffix = owner.rpartition(".")[2]
    for word in ("optimizer", "Optimizer", "optim", "opt"):
        suffix = suffix.replace(word, "")
    suffix = suffix.strip("_")
    return f"{base}_{suffix}" if suffix.isidentifier() or suffix.isalnum() and suffix else f"{base}_{number}"


def _first_place(function: cst.FunctionDef) -> cst.CSTNode:
    """Return the first statement of a function behind its docstring and the call of ``super().__init__``."""
    body = function.body.body
    place = 0
    if function.get_docstring() is not None and len(body) > 1:
        place = 1
    first = body[place]
    if _is_super_call(first) and len(body) > place + 1:
        first = body[place + 1]
    return first.body[0] if isinstance(first, cst.SimpleStatementLine) else first


def _is_super_call(line: cst.CSTNode) -> bool:
    return isinstance(line, cst.SimpleStatementLine) and "super(" in code_of(line) and "__init__" in code_of(line)


def _parameter(name: str) -> cst.Param:
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return cst.Param(cst.Name(name), default=cst.Name("None"), equal=equal)
