"""Half-precision values that leave a region by ways that no name shows: lists, attributes, hooks, results.

Under Apex casts were on everywhere, so such a value met a matrix product in half again. Natively that stands outside of
autocast, and crashes on its float32 weights (SOUNDNESS 20).
"""

from __future__ import annotations

from typing import Iterator, Sequence

import libcst as cst

from ..tree import children
from .computing import Computing
from .index import Index
from .operations import HOOKS, LOWERED, words
from .problem import CannotFollow
from .regions import Region, Regions
from .slices import Slices
from .values import ClassValue, FunctionValue, Imported, Instance, Made

#: what such a call returns is no half value, whatever it got
_CLEANS = words(
    """
    all any append argmax argmin argsort bool dim double element_size eq equal exists extend float format
    ge get_device gt hasattr id int is_cuda isfinite isinf isinstance isnan item le len long lt ne nelement numel
    numpy print range shape size str tolist type
    """
)
#: methods that keep what they get in the object that they are called on
_KEEPS = words("__setitem__ add append appendleft copy_ enqueue extend insert push put put_nowait setdefault update")
_SPREADING = (cst.Assign, cst.AnnAssign, cst.AugAssign, cst.NamedExpr, cst.For, cst.CompFor, cst.Return, cst.Call)
_MOST_ROUNDS = 12


class HalfLeaks:
    """Follows what regions compute through the whole file, whatever the order in which it runs."""

    def __init__(self, regions: Regions) -> None:
        self.regions = regions
        self.index: Index = regions.index
        self.slices: Slices = regions.slices
        self.computing: Computing = regions.computing
        self.solved = regions.slices.solved
        self._lines: set[cst.CSTNode] = set()
        #: functions that run inside of a region, and those of them that run nowhere else
        self._inside: set[cst.CSTNode] = set()
        self._only_inside: set[cst.CSTNode] = set()
        self._tainted: set[object] = set()
        self._returns: set[cst.CSTNode] = set()
        #: while it spreads, functions are looked at as they run in a region; afterwards as they run outside
        self._is_spreading = True

    def check(self, found: Sequence[Region], losses: Sequence[cst.CSTNode] = ()) -> None:
        """Raise CannotFollow where a matrix product, or a module, meets a half value outside of regions."""
        self._lines = {line for region in found for line in self.regions.lines_of(region)} | set(losses)
        if not self._lines:
            return
        self._find_functions()
        nodes = [node for node in self.index.nodes if isinstance(node, _SPREADING)]
        for _ in range(_MOST_ROUNDS):
            size = len(self._tainted) + len(self._returns)
            for node in nodes:
                self._spread(node)
            if len(self._tainted) + len(self._returns) == size:
                break
        self._is_spreading = False
        for node in self.index.nodes:
            if not self._lowers(node) or self._is_inside(node, self._only_inside):
                continue
            if any(self._is_half(each) for each in self._operands(node)):
                raise CannotFollow("a half-precision value is multiplied outside of autocast here", node, 20)

    # -- what runs inside ----------------------------------------------------------------------------------------

    def _find_functions(self) -> None:
        waiting = [node for line in self._lines for node in self.index.walk(line)]
        waiting += [node for hook in self._hooks() for node in self.index.walk(hook)]
        while waiting:
            node = waiting.pop()
            for function, _ in self.solved.functions_of(node) if isinstance(node, cst.Call) else ():
                if function not in self._inside:
                    self._inside.add(function)
                    waiting += self.index.walk(function.body)
        self._only_inside = {each for each in self._inside if self._runs_only_inside(each)}

    def _hooks(self) -> Iterator[cst.CSTNode]:
        """Yield the functions that modules call in their forward."""
        for call in self.index.nodes:
            if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
                continue
            if call.func.attr.value not in HOOKS or not call.args:
                continue
            hook = call.args[0].value
            for value in self.solved.of(hook):
                if isinstance(value, FunctionValue):
                    self._inside.add(value.node)
                    yield value.node.body
            if isinstance(hook, cst.Lambda):
                self._inside.add(hook)
                yield hook.body

    def _runs_only_inside(self, function: cst.CSTNode) -> bool:
        if not isinstance(function, cst.FunctionDef):
            return True
        calls = self.solved.calls.get(function, set())
        return all(self._is_inside(call, self._inside) for call in calls)

    def _is_inside(self, node: cst.CSTNode, functions: set[cst.CSTNode]) -> bool:
        return any(each in self._lines or each in functions for each in (node, *self.index.ancestors(node)))

    # -- how it spreads --------------------------------------------------------------------------------------------

    def _spread(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Assign):
            if self._is_half(node.value):
                for target in node.targets:
                    self._taint(target.target)
        elif isinstance(node, (cst.AnnAssign, cst.AugAssign, cst.NamedExpr)):
            if node.value is not None and self._is_half(node.value):
                self._taint(node.target)
        elif isinstance(node, (cst.For, cst.CompFor)):
            if self._is_half(node.iter):
                self._taint(node.target)
        elif isinstance(node, cst.Return):
            function = self.index.function(node)
            if function is not None and node.value is not None and self._is_half(node.value):
                self._returns.add(function)
        elif isinstance(node, cst.Call):
            self._spread_call(node)

    def _spread_call(self, call: cst.Call) -> None:
        half = [arg.value for arg in call.args if self._is_half(arg.value)]
        if not half:
            return
        name = call.func.attr.value if isinstance(call.func, cst.Attribute) else getattr(call.func, "value", "")
        if name in _KEEPS and isinstance(call.func, cst.Attribute):
            self._taint(call.func.value)
        if name == "setattr" and len(call.args) == 3 and isinstance(call.args[1].value, cst.SimpleString):
            self._tainted.add(("attribute", call.args[1].value.evaluated_value))
        if self._is_inside(call, self._inside):
            return
        for function, bound in self.solved.functions_of(call):
            for param, argument in self.solved.arguments(call, function, bound):
                if argument in half:
                    self._tainted.add(("name", self.slices.solved.names.inside[function], param.name.value))

    def _taint(self, target: cst.CSTNode) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            for element in target.elements:
                self._taint(element.value)
        elif isinstance(target, (cst.Subscript, cst.StarredElement)):
            self._taint(target.value)
        elif isinstance(target, cst.Attribute):
            self._tainted.add(("attribute", target.attr.value))
        elif isinstance(target, cst.Name) and target.value not in ("self", "_") and not self._is_local_inside(target):
            self._tainted.update(self.solved.keys(target))

    def _is_local_inside(self, target: cst.Name) -> bool:
        """Return whether a name is a local one of a function that runs in a region: it may run elsewhere as well."""
        function = self.index.function(target)
        if function not in self._inside or function is None:
            return False
        inside = self.solved.names.inside[function]
        return self.solved.names.owner(target.value, self.index.scope(target)) is inside

    # -- whether an expression is half -------------------------------------------------------------------------------

    def _is_half(self, node: cst.CSTNode) -> bool:
        """Return whether ``node`` may be a half value, or hold one."""
        if isinstance(node, cst.Name):
            return any(key in self._tainted for key in self.solved.keys(node)) or self._is_own_value(node)
        if isinstance(node, cst.Attribute):
            if node.attr.value in _CLEANS or node.attr.value == "grad":
                return False
            return ("attribute", node.attr.value) in self._tainted or self._is_data_of(node)
        if isinstance(node, cst.Call):
            return self._call_is_half(node)
        if isinstance(node, (cst.Comparison, cst.Lambda, cst.FormattedString)):
            return False
        if isinstance(node, cst.BaseComp):
            return self._is_half(node.elt) if isinstance(node, (cst.ListComp, cst.SetComp, cst.GeneratorExp)) else False
        return any(self._is_half(child) for child in children(node))

    def _is_data_of(self, node: cst.Attribute) -> bool:
        """``x.data``, ``x.T``: as half as ``x``. A field of an object isn't."""
        if self.slices.is_object(node.value) or isinstance(node.value, cst.Name) and node.value.value == "self":
            return False
        return self._is_half(node.value)

    def _is_own_value(self, node: cst.Name) -> bool:
        """Return whether a name is bound by what runs in a region: then it's as half as anything there."""
        function = self.index.function(node)
        around = next((each for each in self.index.ancestors(node) if isinstance(each, cst.Lambda)), None)
        if function not in self._inside and around not in self._inside:
            return self._is_bound_in_region(node)
        if not self._is_spreading:
            return False
        return not self.slices.is_object(node) and node.value != "self" and not self._is_number(node)

    def _is_bound_in_region(self, node: cst.Name) -> bool:
        scope = self.index.scope(node)
        owner = self.solved.names.owner(node.value, scope)
        for binder in owner.binders.get(node.value, ()):
            if self._is_inside(binder, set()) and not isinstance(binder, (cst.FunctionDef, cst.ClassDef)):
                value = getattr(self.index.statement(binder), "value", None)
                if value is None or self._is_computed(value):
                    return True
        return False

    def _is_computed(self, value: cst.CSTNode) -> bool:
        if isinstance(value, cst.Call):
            name = value.func.attr.value if isinstance(value.func, cst.Attribute) else getattr(value.func, "value", "")
            return name not in _CLEANS
        return not isinstance(value, (cst.BaseNumber, cst.SimpleString, cst.Comparison))

    def _is_number(self, node: cst.Name) -> bool:
        scope = self.index.scope(node)
        binders = self.solved.names.owner(node.value, scope).binders.get(node.value, ())
        values = [getattr(self.index.statement(b), "value", None) for b in binders if not isinstance(b, cst.Param)]
        return (
            bool(values) and len(values) == len(binders) and not any(v is None or self._is_computed(v) for v in values)
        )

    def _call_is_half(self, call: cst.Call) -> bool:
        name = call.func.attr.value if isinstance(call.func, cst.Attribute) else getattr(call.func, "value", "")
        if name in _CLEANS:
            return False
        own = [function for function, _ in self.solved.functions_of(call)]
        if own:
            if any(function in self._returns and function not in self._inside for function in own):
                return True
            if self._is_inside(call, self._inside) and self._is_spreading:
                return any(function in self._returns for function in own)
            return any(self._is_half(arg.value) for arg in call.args)
        if any(isinstance(value, (ClassValue, Instance)) for value in self.solved.of(call.func)):
            return False
        parts: list[cst.CSTNode] = [arg.value for arg in call.args]
        if isinstance(call.func, cst.Attribute) and not self.slices.is_object(call.func.value):
            parts.append(call.func.value)
        if self._is_inside(call, self._inside if self._is_spreading else set()) and self.computing.call_computes(call):
            return True
        return any(self._is_half(part) for part in parts)

    # -- where it matters --------------------------------------------------------------------------------------------

    def _lowers(self, node: cst.CSTNode) -> bool:
        """Return whether ``node`` multiplies matrices, or calls a module, which has float32 weights."""
        if isinstance(node, cst.BinaryOperation):
            return isinstance(node.operator, cst.MatrixMultiply)
        if not isinstance(node, cst.Call):
            return False
        name = node.func.attr.value if isinstance(node.func, cst.Attribute) else getattr(node.func, "value", "")
        if name in LOWERED:
            return True
        values = self.slices.objects.values(node.func)
        return bool(values & self.slices.models) or any(self._is_layer(value) for value in values)

    def _is_layer(self, value: object) -> bool:
        if not isinstance(value, Made):
            return False
        paths = [each.path for each in self.solved.of(value.call.func) if isinstance(each, Imported)]
        return any(path.startswith("torch.nn.") and not path.endswith("Loss") for path in paths)

    def _operands(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        if isinstance(node, cst.BinaryOperation):
            return [node.left, node.right]
        assert isinstance(node, cst.Call)
        parts: list[cst.CSTNode] = [arg.value for arg in node.args]
        if isinstance(node.func, cst.Attribute) and not self.slices.is_object(node.func.value):
            parts.append(node.func.value)
        return parts
