"""Which models an optimizer's parameters belong to, and which of them a loss can reach."""

from __future__ import annotations

from typing import Iterator

import libcst as cst

from ..tree import walk
from .index import Index
from .objects import Entity, Objects
from .signatures import call_argument
from .solve import Solved
from .values import Apex, ClassValue, Field, FunctionValue, Imported, Instance, Made, Value

_PARAMETERS = {"parameters", "named_parameters", "param_groups"}
_DEEPEST = 5
_COLLECTING = (cst.List, cst.Tuple, cst.ListComp, cst.Call, cst.BinaryOperation, cst.Dict)


class Reach:
    """Answers for the optimizers of one file."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.solved: Solved = objects.solved
        self.index: Index = objects.index
        self._roots: dict[Value, frozenset[Value]] = {}

    def models_of(self, optimizer: Entity) -> frozenset[Value]:
        """Return the models whose parameters ``optimizer`` was made from; empty if that can't be seen."""
        if optimizer.value not in self._roots:
            self._roots[optimizer.value] = self._models_of(optimizer)
        return self._roots[optimizer.value]

    def _models_of(self, optimizer: Entity) -> frozenset[Value]:
        found: set[Value] = set()
        for call in self.makers(optimizer):
            mine: set[Value] = set()
            for arg in self._parameter_arguments(call):
                mine |= self.models_in(arg)
            if not mine:
                return frozenset()
            found |= mine
        for added in self._added_groups(optimizer):
            for group in added.args:
                found |= self.models_in(group.value)
        return frozenset(found)

    def _added_groups(self, optimizer: Entity) -> Iterator[cst.Call]:
        for call in self.index.nodes:
            func = call.func if isinstance(call, cst.Call) else None
            if not isinstance(call, cst.Call) or not isinstance(func, cst.Attribute):
                continue
            if func.attr.value == "add_param_group" and optimizer.value in self.objects.values(func.value):
                yield call

    def _parameter_arguments(self, call: cst.Call) -> list[cst.BaseExpression]:
        """The first argument of an optimizer's class; any object that a function which makes one gets."""
        inner = [
            argument
            for function, _ in self.solved.functions_of(call)
            for made in self.index.walk(function.body)
            if isinstance(made, cst.Call) and Made(made) in self.solved.of(made) and self._is_class(made)
            for argument in self._parameter_arguments(made)
        ]
        if inner:
            return inner
        func = call.func
        name = func.attr.value if isinstance(func, cst.Attribute) else getattr(func, "value", "")
        first = call_argument(call, 0, "params")
        if isinstance(name, str) and name[:1].isupper() and first is not None:
            return [first]
        return [arg.value for arg in call.args if self.objects.values(arg.value)]

    def _returns_class(self, call: cst.Call) -> bool:
        return any(
            isinstance(made, cst.Call) and self._is_class(made)
            for function, _ in self.solved.functions_of(call)
            for made in self.index.walk(function.body)
        )

    def _is_class(self, call: cst.Call) -> bool:
        """Return whether a call looks like that of an optimizer's class: imported, and capitalised."""
        imported = [value.path for value in self.solved.of(call.func) if isinstance(value, (Imported, Apex))]
        if any(path.rpartition(".")[2][:1].isupper() and "optim" in path.lower() for path in imported):
            return True
        own = [value.node for value in self.solved.of(call.func) if isinstance(value, ClassValue)]
        return any(self.solved.own_optimizers.is_one(each) for each in own)

    def makers(self, optimizer: Entity) -> list[cst.Call]:
        """Return the calls that make ``optimizer``."""
        calls = []
        for node in self.index.nodes:
            is_made = isinstance(node, cst.Call) and Made(node) in self.solved.of(node)
            if isinstance(node, cst.Call) and is_made and self.objects.leader(Made(node)) == optimizer.value:
                calls.append(node)
        return calls

    def models_in(self, node: cst.CSTNode, depth: int = 0) -> set[Value]:
        """Return the models whose parameters the expression ``node`` takes, and whatever else it may take them from."""
        found: set[Value] = set()
        if depth > _DEEPEST:
            return found
        for each in self.index.walk(node):
            if isinstance(each, cst.Attribute) and each.attr.value in _PARAMETERS:
                found |= self.objects.values(each.value)
            elif isinstance(each, (cst.Name, cst.Attribute)) and not self._is_part_of_attribute(each):
                found |= self._models_behind(each, depth)
        return found

    def _models_behind(self, node: cst.BaseExpression, depth: int) -> set[Value]:
        values = self.solved.of(node)
        if any(isinstance(v, (Imported, FunctionValue, ClassValue)) for v in values):
            return set()
        found: set[Value] = set()
        for source in self.sources(node):
            found |= self.models_in(source, depth + 1)
        for value in () if found else self.objects.values(node):
            inside = (
                self.models_in(value.call, depth + 1) if isinstance(value, Made) and self._is_made_of(value) else set()
            )
            found |= inside or ({value} if self.is_model(value) else set())
        return found

    def _is_made_of(self, value: Made) -> bool:
        """Return whether a call only collects parameters: ``net.parameters()``, ``list(…)``, ``chain(…)``."""
        func = value.call.func
        if isinstance(func, cst.Attribute):
            return func.attr.value in _PARAMETERS or func.attr.value in ("chain", "from_iterable")
        return isinstance(func, cst.Name) and func.value in ("list", "tuple", "set", "filter", "chain", "iter", "map")

    def _is_part_of_attribute(self, node: cst.CSTNode) -> bool:
        return isinstance(self.index.parent.get(node), cst.Attribute)

    def sources(self, node: cst.BaseExpression) -> list[cst.BaseExpression]:
        """Return what the name ``node`` is bound to, and grows by, in its function, where that collects parameters."""
        if not isinstance(node, cst.Name):
            return []
        scope = self.index.scope(node)
        owner = self.solved.names.owner(node.value, scope)
        found: list[cst.BaseExpression] = []
        for binder in owner.binders.get(node.value, ()):
            target = self.index.parent.get(binder)
            if isinstance(target, cst.AugAssign):
                found.append(target.value)
            statement = self.index.parent.get(target) if target is not None else None
            if isinstance(target, cst.AssignTarget) and isinstance(statement, cst.Assign):
                is_display = isinstance(statement.value, _COLLECTING)
                if is_display and (
                    not self.objects.values(statement.value) or self.mentions_parameters(statement.value)
                ):
                    found.append(statement.value)
        for use in self.solved.names.uses.get(node.value, ()):
            call = self.index.parent.get(use.node)
            if isinstance(call, cst.Call) and use.attributes in (("append",), ("extend",), ("insert",)):
                found += [arg.value for arg in call.args]
        return found

    @staticmethod
    def mentions_parameters(node: cst.CSTNode) -> bool:
        """Return whether ``node`` says ``.parameters()`` or the like."""
        return any(isinstance(each, cst.Attribute) and each.attr.value in _PARAMETERS for each in walk(node))

    def is_model(self, value: Value) -> bool:
        """Return whether ``value`` may be a model: an object that is called, or of a class with a ``forward``."""
        if isinstance(value, Instance):
            return self.solved.classes.method(value.node, "forward") is not None
        return not (isinstance(value, Field) and value.key[1] is None)

    def inside(self, model: Value) -> frozenset[Value]:
        """Return ``model`` and what is stored inside it, as far as this file shows."""
        found: set[Value] = set()
        waiting: list[Value] = [model]
        while waiting:
            each = waiting.pop()
            if each in found:
                continue
            found.add(each)
            if isinstance(each, Instance):
                waiting.extend(self.objects.leader(v) for v in self.solved.field_values(each.node))
        return frozenset(found)

    def is_covered(self, optimizer: Entity, models: set[Value]) -> bool:
        """Return whether all parameters of ``optimizer`` surely belong to ``models``."""
        mine = self.models_of(optimizer)
        available = frozenset(each for model in models for each in self.inside(model))
        return bool(mine) and mine <= available

    def has_all(self, optimizer: Entity, models: set[Value]) -> bool:
        """Return whether ``optimizer`` surely has every trained parameter of ``models``, and no others."""
        if not self.is_covered(optimizer, models) or not models <= self.models_of(optimizer):
            return False
        if any(True for _ in self._added_groups(optimizer)):
            return False
        if not all(self._is_class(call) or self._returns_class(call) for call in self.makers(optimizer)):
            return False
        conditions = []
        for call in self.makers(optimizer):
            waiting: list[cst.CSTNode] = [arg.value for arg in call.args]
            for _ in range(_DEEPEST):
                waiting += [
                    source for node in waiting for name in self.index.walk(node) for source in self._name_sources(name)
                ]
            conditions += [
                _condition(each) for node in waiting for each in self.index.walk(node) if isinstance(each, cst.CompIf)
            ]
        others = {text for text in conditions if not text.endswith("requires_grad")}
        return all(text.startswith("not ") or f"not {text}" in others for text in others) and all(
            not text.startswith("not ") or text[4:] in others for text in others
        )

    def _name_sources(self, node: cst.CSTNode) -> list[cst.BaseExpression]:
        return self.sources(node) if isinstance(node, cst.Name) else []


def _condition(node: cst.CompIf) -> str:
    return " ".join(cst.Module([]).code_for_node(node.test).split())
