"""Where the value of an expression comes from: the statements of this file that bind what it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Collection, Iterator

import libcst as cst

from ..tree import children, walk
from .index import Index
from .loop_shapes import is_no_grad
from .objects import Objects
from .operations import NEUTRAL
from .solve import Solved
from .values import Field, Instance, Made, Parameter, Several, Value

#: attributes and methods behind which no gradient flows back
_CUTS = {"detach", "item", "data", "tolist", "numpy", "shape", "size", "argmax", "device", "dtype"}
#: attributes and methods that give numbers, which autocast doesn't change
_NUMBERS = _CUTS - {"detach", "data"}
_MODEL_METHODS = {"parameters", "named_parameters", "train", "eval", "zero_grad", "modules", "children", "buffers"}


@dataclass
class Slice:
    """What an expression depends on.

    Args:
        statements: the small statements (and loop heads) that bind what it reads, in any function.
        values: the objects that these statements name.
        is_whole: False if something comes from where this file can't be followed.
    """

    statements: set[cst.CSTNode] = field(default_factory=set)
    #: (call, argument): what a caller passes for a parameter that is read
    arguments: set[tuple[cst.CSTNode, cst.CSTNode]] = field(default_factory=set)
    values: set[Value] = field(default_factory=set)
    #: the objects that functions of this file use on the way, perhaps under a condition, and these functions
    through: set[Value] = field(default_factory=set)
    functions: set[cst.FunctionDef] = field(default_factory=set)
    is_whole: bool = True


class Slices:
    """Slices of one file."""

    def __init__(self, objects: Objects, models: set[Value]) -> None:
        self.objects = objects
        self.solved: Solved = objects.solved
        self.index: Index = objects.index
        self._stores = self._attribute_stores()
        self._known: dict[tuple[cst.BaseExpression, bool], Slice] = {}
        self._words: dict[cst.CSTNode, frozenset[str]] = {}
        self._used: dict[cst.FunctionDef, set[Value]] = {}
        self.models = models | self._called()

    def is_object(self, node: cst.BaseExpression) -> bool:
        """Return whether ``node`` names a model, function, class or module rather than data."""
        values = self.solved.of(node)
        if not values or any(isinstance(v, Several) for v in values):
            return False  # a list or dict is data, whatever is in it
        return all(not isinstance(v, (Made, Parameter, Field)) or self.objects.leader(v) in self.models for v in values)

    def runs(self, call: cst.Call, models: Collection[Value]) -> bool:
        """Return whether ``call`` computes with one of ``models``: calls it, or a layer or method of it."""
        func = call.func
        if self.objects.values(func) & set(models):
            return True
        if isinstance(func, cst.Attribute) and func.attr.value in NEUTRAL | _MODEL_METHODS:
            return False
        while isinstance(func, (cst.Attribute, cst.Subscript)):
            func = func.value
            if isinstance(func, cst.Attribute) and func.attr.value in ("weight", "bias", "grad", "data"):
                return False  # a parameter is read, and no layer called
            if isinstance(func, (cst.Name, cst.Attribute)) and self.objects.values(func) & set(models):
                return True
        return False

    def of(self, node: cst.BaseExpression, gradients_only: bool = False) -> Slice:
        """Return the slice of ``node``. With ``gradients_only``, don't go where no gradient flows back."""
        key = (node, gradients_only)
        if key not in self._known:
            self._known[key] = self._slice(node, gradients_only)
        return self._known[key]

    def _slice(self, node: cst.BaseExpression, gradients_only: bool) -> Slice:
        found = Slice()
        waiting: list[tuple[cst.CSTNode, cst.CSTNode]] = [(node, node)]
        seen: set[cst.CSTNode] = set()
        while waiting:
            expression, _ = waiting.pop()
            found.through |= self._used_by_callees(expression)
            for call in self.index.walk(expression):
                if isinstance(call, cst.Call):
                    found.functions.update(function for function, _ in self.solved.functions_of(call))
            for read in self._reads(expression, gradients_only):
                if read in seen:
                    continue
                seen.add(read)
                found.values |= {self.objects.leader(v) for v in self.solved.of(read)}
                for statement, source in self._definitions(read, found):
                    if gradients_only and self._is_without_gradient(statement):
                        continue
                    if isinstance(self.index.parent.get(source), cst.Arg) and self._is_argument(statement, source):
                        found.arguments.add((statement, source))
                    else:
                        found.statements.add(statement)
                    waiting.append((source, statement))
        return found

    def _used_by_callees(self, node: cst.CSTNode) -> set[Value]:
        """Return the objects that the functions of this file which ``node`` calls use, through all that they call."""
        found: set[Value] = set()
        for call in self.index.walk(node):
            if isinstance(call, cst.Call):
                for function, _ in self.solved.functions_of(call):
                    found |= self._used_in(function)
        return found

    def _used_in(self, function: cst.FunctionDef) -> set[Value]:
        if function not in self._used:
            self._used[function] = set()  # while it's looked at: recursion adds nothing
            found = self._used_by_callees(function.body)
            for node in self.index.walk(function.body):
                if isinstance(node, (cst.Name, cst.Attribute)):
                    found |= self.objects.values(node)
            self._used[function] = found
        return self._used[function]

    # -- what an expression reads ----------------------------------------------------------------------------------

    def _reads(self, node: cst.CSTNode, gradients_only: bool) -> Iterator[cst.BaseExpression]:
        waiting = [node]
        while waiting:
            each = waiting.pop()
            if isinstance(each, cst.Name):
                yield each
            elif isinstance(each, cst.Attribute):
                if each.attr.value in (_CUTS if gradients_only else _NUMBERS):
                    continue
                yield each
                waiting.append(each.value)
            elif isinstance(each, cst.Lambda):
                continue
            else:
                if isinstance(each, cst.Call):
                    waiting.extend(self._fields_of_callee(each))
                waiting.extend(children(each))

    def _fields_of_callee(self, call: cst.Call) -> Iterator[cst.CSTNode]:
        """What a method of this file reads from its object, wherever that was stored."""
        seen: set[cst.FunctionDef] = set()
        waiting = [function for function, _ in self.solved.functions_of(call)]
        while waiting:
            function = waiting.pop()
            if function in seen:
                continue
            seen.add(function)
            for node in self.index.walk(function.body):
                if isinstance(node, cst.Attribute) and self._stored_by_others(node, function):
                    yield node
                elif isinstance(node, cst.Call):
                    waiting.extend(f for f, _ in self.solved.functions_of(node))

    def _stored_by_others(self, node: cst.Attribute, function: cst.FunctionDef) -> bool:
        if not any(isinstance(v, Instance) for v in self.solved.of(node.value)):
            return False
        return any(
            self.index.function(statement) is not function and not self._is_constructor(statement)
            for key in self.solved.keys(node)
            for statement, _ in self._stores.get(key, ())
        )

    def _is_constructor(self, node: cst.CSTNode) -> bool:
        function = self.index.function(node)
        return function is not None and function.name.value == "__init__"

    # -- where that was bound --------------------------------------------------------------------------------------

    def _definitions(self, read: cst.BaseExpression, found: Slice) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
        if self.is_object(read):
            return
        if isinstance(read, cst.Attribute):
            for key in self.solved.keys(read):
                yield from self._stores.get(key, ())
            return
        assert isinstance(read, cst.Name)
        scope = self.index.scope(read)
        owner = self.solved.names.owner(read.value, scope)
        binders = owner.binders.get(read.value, [])
        if not binders:
            return
        if any(isinstance(each, cst.Param) for each in binders):
            yield from self._from_callers(binders[0], found)
        if owner is scope or owner.kind != "module":
            yield from self.reaching(read.value, read)
        else:
            yield from (pair for each in binders for pair in self._binding(each))

    def _is_argument(self, statement: cst.CSTNode, source: cst.CSTNode) -> bool:
        """Return whether ``source`` is an argument of a call in ``statement`` rather than what it assigns."""
        return getattr(statement, "value", None) is not source and getattr(statement, "iter", None) is not source

    def _from_callers(self, param: cst.CSTNode, found: Slice) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
        function = self.index.parent[self.index.parent[param]]
        if not isinstance(function, cst.FunctionDef):
            return
        calls = self.solved.calls.get(function, set())
        if not calls or function in self.solved.handed_on:
            found.is_whole = False
        for call in calls:
            bound = dict(self.solved.functions_of(call)).get(function, False)
            for each, argument in self.solved.arguments(call, function, bound):
                if each is param:
                    yield self.index.statement(call), argument

    def reaching(self, name: str, at: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
        """Yield (statement, what it takes) for the bindings of ``name`` that can reach ``at`` in its function."""
        line = self.index.line(self.index.statement(at))
        while True:
            block = self.index.block(line)
            lines = list(block.body)
            place = lines.index(line) if line in lines else len(lines)
            for before in reversed(lines[:place]):
                pairs = list(self._bindings_in(before, name))
                yield from pairs
                if pairs and isinstance(before, (cst.SimpleStatementLine, cst.BaseSmallStatement)):
                    return
            outer: cst.CSTNode = block
            while outer in self.index.parent and not isinstance(outer, (cst.BaseCompoundStatement, cst.Module)):
                outer = self.index.parent[outer]
            if isinstance(outer, (cst.For, cst.While)):
                for later in lines[place:]:
                    yield from self._bindings_in(later, name)
                if isinstance(outer, cst.For) and self._names_in(outer.target, name):
                    if not _is_counter(outer, name):
                        yield outer, outer.iter
                    return
            if isinstance(outer, cst.With):
                for item in outer.items:
                    if item.asname is not None and self._binds(item.asname.name, name):
                        yield outer, item.item
                        return
            if not isinstance(outer, cst.BaseCompoundStatement) or isinstance(outer, (cst.FunctionDef, cst.ClassDef)):
                return
            line = outer

    @staticmethod
    def _names_in(target: cst.CSTNode, name: str) -> bool:
        return any(isinstance(each, cst.Name) and each.value == name for each in walk(target))

    def _says(self, line: cst.CSTNode, name: str) -> bool:
        if line not in self._words:
            self._words[line] = frozenset(each.value for each in self.index.walk(line) if isinstance(each, cst.Name))
        return name in self._words[line]

    def _bindings_in(self, line: cst.CSTNode, name: str) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
        waiting = [line] if self._says(line, name) else []
        while waiting:
            node = waiting.pop()
            if isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
                continue
            if isinstance(node, cst.Assign):
                for target in node.targets:
                    if self._binds(target.target, name):
                        yield node, self._taken(target.target, node.value, name)
            elif isinstance(node, cst.AugAssign) and self._binds(node.target, name):
                yield node, node.value
                yield node, node.target
            elif isinstance(node, (cst.AnnAssign, cst.NamedExpr)) and node.value is not None:
                if self._binds(node.target, name):
                    yield self.index.statement(node), node.value
            elif isinstance(node, cst.For) and self._binds(node.target, name) and not _is_counter(node, name):
                yield node, node.iter
            elif isinstance(node, cst.With):
                for item in node.items:
                    if item.asname is not None and self._binds(item.asname.name, name):
                        yield node, item.item
            elif isinstance(node, cst.Call) and self._grows(node, name):
                yield self.index.statement(node), node
            waiting.extend(children(node))

    @staticmethod
    def _grows(call: cst.Call, name: str) -> bool:
        """``losses.append(x)``: what is in the list comes from there."""
        func = call.func
        return (
            isinstance(func, cst.Attribute)
            and isinstance(func.value, cst.Name)
            and func.value.value == name
            and func.attr.value in ("append", "extend", "add", "insert", "update", "add_", "mul_", "div_")
        )

    @staticmethod
    def _binds(target: cst.CSTNode, name: str) -> bool:
        if isinstance(target, cst.Name):
            return target.value == name
        if isinstance(target, (cst.Tuple, cst.List)):
            return any(Slices._binds(element.value, name) for element in target.elements)
        if isinstance(target, (cst.Subscript, cst.StarredElement)):
            return Slices._binds(target.value, name)
        return False

    @staticmethod
    def _taken(target: cst.CSTNode, value: cst.BaseExpression, name: str) -> cst.BaseExpression:
        """Return the part of ``value`` that goes to ``name``, where both sides are displays."""
        if (
            isinstance(target, cst.Tuple)
            and isinstance(value, cst.Tuple)
            and len(target.elements) == len(value.elements)
        ):
            for left, right in zip(target.elements, value.elements):
                if Slices._binds(left.value, name):
                    return right.value
        return value

    def _binding(self, binder: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
        if isinstance(binder, cst.Name):
            statement = self.index.statement(binder)
            value = getattr(statement, "value", None)
            if isinstance(value, cst.BaseExpression):
                yield statement, value

    def _attribute_stores(self) -> dict[object, list[tuple[cst.CSTNode, cst.CSTNode]]]:
        found: dict[object, list[tuple[cst.CSTNode, cst.CSTNode]]] = {}
        for node in self.index.nodes:
            if isinstance(node, cst.Assign):
                targets = [(t.target, node.value) for t in node.targets]
            elif isinstance(node, (cst.AugAssign, cst.AnnAssign)) and node.value is not None:
                targets = [(node.target, node.value)]
            else:
                continue
            for target, value in targets:
                parts = [e.value for e in target.elements] if isinstance(target, (cst.Tuple, cst.List)) else [target]
                for part in parts:
                    if isinstance(part, cst.Attribute):
                        for key in self.solved.keys(part):
                            found.setdefault(key, []).append((node, value))
        return found

    def _called(self) -> set[Value]:
        """The objects that this file calls, or treats as a model."""
        found: set[Value] = set()
        for node in self.index.nodes:
            if not isinstance(node, cst.Call):
                continue
            found |= {self.objects.leader(v) for v in self.solved.of(node.func) if _can_be_called(v)}
            if isinstance(node.func, cst.Attribute) and node.func.attr.value in _MODEL_METHODS:
                found |= self.objects.values(node.func.value)
        return found

    def _is_without_gradient(self, statement: cst.CSTNode) -> bool:
        for outer in self.index.ancestors(statement):
            if isinstance(outer, cst.With) and is_no_grad(outer):
                return True
            if isinstance(outer, cst.FunctionDef):
                return False
        return False


def _can_be_called(value: Value) -> bool:
    """Return whether ``value`` is an object that is called; a method of one that isn't known is none."""
    return isinstance(value, (Made, Parameter)) or (isinstance(value, Field) and value.key[1] is not None)


def _is_counter(loop: cst.For, name: str) -> bool:
    """Return whether ``name`` only counts: ``for i in range(…)``, ``for i, x in enumerate(…)``."""
    source = loop.iter
    if not (isinstance(source, cst.Call) and isinstance(source.func, cst.Name)):
        return False
    if source.func.value in ("range", "trange"):
        return True
    first = loop.target.elements[0].value if isinstance(loop.target, cst.Tuple) else None
    return source.func.value == "enumerate" and isinstance(first, cst.Name) and first.value == name
