"""Calls of a trained model: each must be in a region, or be evaluation. Else what it computes would be float32 now."""

from __future__ import annotations

from typing import Iterable, Sequence

import libcst as cst

from .index import Index
from .kinds import Kinds
from .loop_shapes import is_no_grad, is_no_grad_call
from .problem import CannotFollow
from .regions import Region, Regions
from .slices import Slices
from .values import Value


class ModelCalls:
    """Checks the regions of one training loop."""

    def __init__(self, regions: Regions) -> None:
        self.regions = regions
        self.index: Index = regions.index
        self.kinds: Kinds = regions.kinds
        self.slices: Slices = regions.slices

    def check(self, models: frozenset[Value], regions: Sequence[Region], losses: Iterable[cst.CSTNode]) -> None:
        """Raise CannotFollow for a call of a model in training that no region holds: under Apex it was cast as well."""
        held = {line for region in regions for line in self.regions.lines_of(region)} | set(losses)
        for call in self.index.nodes:
            if not isinstance(call, cst.Call) or not self._computes_with(call, models):
                continue
            if not self._is_held(call, held, ()) and not self._is_evaluation(call):
                raise CannotFollow("whether what the model computes here reaches a loss can't be seen", call, 19)

    def check_held(self, models: frozenset[Value], regions: Sequence[Region], start: cst.CSTNode) -> None:
        """Raise CannotFollow for a call of a model that no region holds, unless it is over before ``start``."""
        held: set[cst.CSTNode] = {line for region in regions for line in self.regions.lines_of(region)}
        for call in self.index.nodes:
            if not isinstance(call, cst.Call) or not self._computes_with(call, models):
                continue
            if not self._is_held(call, held, ()) and not self._is_over(call, start, ()):
                raise CannotFollow("the model is called outside of evaluation", call, 25)

    def _is_over(self, node: cst.CSTNode, start: cst.CSTNode, path: tuple[cst.CSTNode, ...]) -> bool:
        """Return whether ``node`` runs before ``start`` alone, by the order of the calls in its function."""
        function = self.index.function(node)
        if function is self.index.function(start):
            loops = {each for each in self.index.ancestors(start) if isinstance(each, (cst.For, cst.While))}
            return self.index.before(node, start) and not loops & set(self.index.ancestors(node))
        calls = self.slices.solved.calls.get(function, set()) if function is not None else set()
        if not calls or function in path or function in self.slices.solved.handed_on:
            return False
        assert function is not None
        return all(self._is_over(call, start, (*path, function)) for call in calls)

    def _computes_with(self, call: cst.Call, models: frozenset[Value]) -> bool:
        if not self.slices.runs(call, models):
            return False
        if self.slices.objects.values(call.func) & models:
            return True
        name = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        return name != "load_state_dict" and self.regions.computing.call_computes(call)

    def _is_held(self, node: cst.CSTNode, held: set[cst.CSTNode], path: tuple[cst.CSTNode, ...]) -> bool:
        if self._is_lazy(node):
            return False
        if node in held or any(each in held for each in self.index.ancestors(node)):
            return True
        function = self.index.function(node)
        calls = self.slices.solved.calls.get(function, set()) if function is not None else set()
        if function is None or not calls or function in path or function in self.slices.solved.handed_on:
            return False
        return all(self._is_held(call, held, (*path, function)) or self._is_evaluation(call) for call in calls)

    def _is_lazy(self, node: cst.CSTNode) -> bool:
        """Return whether ``node`` runs later than the statement it stands in: in a lambda or a generator."""
        for outer in self.index.ancestors(node):
            if isinstance(outer, (cst.Lambda, cst.GeneratorExp)):
                return True
            if isinstance(outer, cst.FunctionDef):
                return any(isinstance(each, cst.Yield) for each in self.index.walk(outer.body))
        return False

    def _is_evaluation(self, node: cst.CSTNode) -> bool:
        """Return whether ``node`` runs without gradients, in a function that says ``eval()``, or before amp is on."""
        function = self.index.function(node)
        for outer in self.index.ancestors(node):
            if isinstance(outer, cst.With) and is_no_grad(outer):
                return True
            if isinstance(outer, cst.FunctionDef):
                break
        if function is None:
            return False
        if any(is_no_grad_call(decorator.decorator) for decorator in function.decorators):
            return True
        if self.kinds.of_function(function):
            return False
        return any(
            isinstance(each, cst.Call) and isinstance(each.func, cst.Attribute) and each.func.attr.value == "eval"
            for each in self.index.walk(function.body)
        ) or self._is_called_by_evaluation(function)

    def _is_called_by_evaluation(self, function: cst.FunctionDef) -> bool:
        calls = self.slices.solved.calls.get(function, set())
        inner = [call for call in calls if self.index.function(call) is not function]
        return bool(inner) and all(self._is_evaluation(call) for call in inner)
