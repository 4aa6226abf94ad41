"""The ``enabled=`` of scaler and autocast: the old guard, as a bool."""

from __future__ import annotations

import libcst as cst

from .decision import Decision, Facts
from .guards import split_test
from .index import code_of
from .options import option_calls, text_of
from .problem import CannotFollow
from .signatures import keyword_argument

_PURE_CALLS = {"is_available", "hasattr", "getattr", "len", "isinstance", "bool", "int"}


class Enabled:
    """Spells the condition under which amp is on, in the functions that can ask for it."""

    def __init__(self, decision: Decision, facts: Facts) -> None:
        self.decision = decision
        self.facts = facts
        self.site = decision.loop.initialize[0]

    @property
    def is_constant(self) -> bool:
        """Whether amp is on whenever this code runs."""
        level = self.decision.level
        is_fixed = level.expression is None or level.switch is not None
        return is_fixed and not self.decision.guard.parts and not self.decision.is_conditional

    def expression(self) -> cst.BaseExpression | None:
        """Return the condition where ``amp.initialize`` stood; None if it always holds."""
        parts = [(test, truth) for test, truth in self.decision.guard.parts]
        for test, _ in parts:
            self._check_pure(test)
        texts = [_text(test, truth) for test, truth in parts]
        is_bool = all(self._is_bool(test) or not truth for test, truth in parts)
        level = self.level_test()
        if level is not None:
            texts.append(code_of(level))
        if not texts:
            return None
        text = " and ".join(texts)
        return cst.parse_expression(text if is_bool else f"bool({text})")

    def level_test(self) -> cst.BaseExpression | None:
        """Return ``opt_level != "O0"`` where the level is computed."""
        level = self.decision.level
        if level.expression is None or level.switch is not None:
            return None
        simple = isinstance(level.expression, (cst.Name, cst.Attribute, cst.Subscript, cst.FormattedString, cst.Call))
        text = code_of(level.expression)
        return cst.parse_expression(f'{text if simple else f"({text})"} != "O0"')

    def in_function(self, function: cst.FunctionDef | None) -> cst.BaseExpression | None:
        """Return the condition as ``function`` itself asks for it; None if it doesn't."""
        if self.level_test() is None and self.decision.guard.parts:
            for node in self.facts.index.walk(self.facts.index.module if function is None else function.body):
                if isinstance(node, cst.If) and self.facts.index.function(node) is function:
                    found = self._asked(node)
                    if found is not None:
                        return found
        return None

    def _asked(self, node: cst.If) -> cst.BaseExpression | None:
        conditions = self.facts.conditions
        truth = conditions.truth(node.test, self.decision.facts)
        if truth is None or conditions.is_availability(node.test):
            return None
        atoms = {
            a for a in conditions.conjuncts(node.test, truth) if a.left.partition("@")[0] not in conditions.available
        }
        if atoms != set(self.decision.guard.facts) or any(
            isinstance(each, cst.Call) for each in self.facts.index.walk(node.test)
        ):
            return None
        parts = [(test, value) for test, value in split_test(node.test, truth) if not conditions.is_availability(test)]
        text = " and ".join(_text(test, value) for test, value in parts)
        is_bool = all(self._is_bool(test) or not value for test, value in parts)
        return cst.parse_expression(text if is_bool else f"bool({text})")

    def _check_pure(self, test: cst.BaseExpression) -> None:
        for node in self.facts.index.walk(test):
            if isinstance(node, cst.Call):
                name = node.func.attr.value if isinstance(node.func, cst.Attribute) else code_of(node.func)
                if name not in _PURE_CALLS:
                    raise CannotFollow(f"the guard `{code_of(test)}` of `amp.initialize` runs code", test, 27)

    def _is_bool(self, test: cst.BaseExpression) -> bool:
        """Return whether ``test`` surely is a bool: GradScaler and autocast take nothing else."""
        if isinstance(test, cst.Comparison):
            return True
        if isinstance(test, cst.UnaryOperation):
            return isinstance(test.operator, cst.Not)
        if isinstance(test, cst.Name):
            return test.value in ("True", "False") or self._is_bool_name(test)
        if isinstance(test, cst.Attribute):
            return self._is_store_true(test.attr.value)
        return isinstance(test, cst.Call) and code_of(test.func) in (
            "bool",
            "isinstance",
            "hasattr",
            "torch.cuda.is_available",
        )

    def _is_bool_name(self, name: cst.Name) -> bool:
        scope = self.facts.index.scope(name)
        binders = self.facts.solved.names.binders(name.value, scope)
        values = []
        for binder in binders:
            target = self.facts.index.parent.get(binder)
            statement = self.facts.index.parent.get(target) if isinstance(target, cst.AssignTarget) else None
            if not isinstance(statement, cst.Assign):
                return False
            values.append(statement.value)
        return (
            bool(values)
            and all(not isinstance(v, cst.Name) or v.value in ("True", "False") for v in values)
            and all(self._is_bool(value) for value in values)
        )

    def _is_store_true(self, destination: str) -> bool:
        calls = list(option_calls(self.facts.index.module, destination))
        actions = {text_of(keyword_argument(call, "action")) for call in calls}
        return bool(calls) and actions <= {"store_true", "store_false"} and not self._is_stored(destination)

    def _is_stored(self, attribute: str) -> bool:
        for node in self.facts.index.nodes:
            if isinstance(node, (cst.Assign, cst.AugAssign, cst.AnnAssign)):
                targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
                if any(isinstance(t, cst.Attribute) and t.attr.value == attribute for t in targets):
                    return True
        return False


def _text(test: cst.BaseExpression, truth: bool) -> str:
    text = code_of(test)
    if isinstance(test, (cst.BooleanOperation, cst.IfExp, cst.NamedExpr)) and not test.lpar:
        text = f"({text})"
    if truth:
        return text
    if isinstance(test, cst.Comparison) and not test.lpar:
        return _negated(test)
    return f"not {text}"


def _negated(test: cst.Comparison) -> str:
    opposite = {cst.Equal: "!=", cst.NotEqual: "==", cst.Is: "is not", cst.IsNot: "is"}
    if len(test.comparisons) == 1:
        target = test.comparisons[0]
        sign = opposite.get(type(target.operator))
        if sign is not None:
            return f"{code_of(test.left)} {sign} {code_of(target.comparator)}"
    return f"not ({code_of(test)})"
