"""Who is who in a file: which objects each name and attribute can stand for, over all its functions.

Flow-insensitive: a name stands for everything that is ever bound to it. It is solved by repeating all bindings until
nothing changes; files are small.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Iterable, Iterator, Sequence

import libcst as cst

from ..imports import ApexImport
from ..scopes import Names
from ..tree import dotted_name
from .classes import Classes, is_static
from .index import Index
from .known_calls import HANDLE, INIT, INITIALIZE, SAME_OBJECT, WRAPPERS
from .own_optimizers import OwnOptimizers
from .signatures import bound_arguments, call_argument
from .values import (
    OBJECTS,
    Apex,
    ClassValue,
    Field,
    FunctionValue,
    Imported,
    Instance,
    Key,
    Made,
    Parameter,
    Partial,
    Several,
    Value,
    made_by,
)

NOTHING: frozenset[Value] = frozenset()
_MOST_PASSES = 12


class Solved:
    """The solution. Ask with :meth:`of`."""

    def __init__(self, index: Index, names: Names, apex: Sequence[ApexImport]) -> None:
        self.index = index
        self.names = names
        self.classes = Classes(index)
        self.own_optimizers = OwnOptimizers(self)
        #: function → the calls that can run it
        self.calls: dict[cst.FunctionDef, set[cst.Call]] = defaultdict(set)
        #: functions that are handed on as values, so that they can be called from anywhere
        self.handed_on: set[cst.FunctionDef] = set()
        #: call of a class of this file → the class
        self.made_instances: dict[cst.Call, cst.ClassDef] = {}
        self._apex = {site.node: site for site in apex}
        self._table: dict[Key, set[Value]] = defaultdict(set)
        self._open: set[cst.CSTNode] = set()
        self._returns: dict[cst.FunctionDef, list[cst.BaseExpression]] = defaultdict(list)
        self._nodes = list(index.nodes)
        self._memo: dict[cst.CSTNode, frozenset[Value]] = {}
        self._solve()

    def of(self, node: cst.CSTNode) -> frozenset[Value]:
        """Return everything that the expression ``node`` can stand for."""
        known = self._memo.get(node)
        if known is not None:
            return known
        if node in self._open:
            return NOTHING
        self._open.add(node)
        found = self._evaluate(node)
        self._open.discard(node)
        self._memo[node] = found
        return found

    def functions_of(self, call: cst.Call) -> Iterator[tuple[cst.FunctionDef, bool]]:
        """Yield the functions of this file that ``call`` can run, and whether their first parameter is filled."""
        for value in self.of(call.func):
            if isinstance(value, FunctionValue):
                yield value.node, value.bound
            elif isinstance(value, ClassValue):
                init = self.classes.method(value.node, "__init__")
                if init is not None:
                    yield init, True
            elif isinstance(value, Instance):
                for method in ("__call__", "forward"):
                    found = self.classes.method(value.node, method)
                    if found is not None:
                        yield found, True
                        break
            elif isinstance(value, Partial):
                yield from ((f.node, f.bound) for f in self._partial(value) if isinstance(f, FunctionValue))

    def arguments(
        self, call: cst.Call, function: cst.FunctionDef, bound: bool
    ) -> Iterator[tuple[cst.Param, cst.BaseExpression]]:
        """Yield (parameter, argument) for a call that runs ``function``, those of ``functools.partial`` included."""
        args: list[cst.Arg] = list(call.args)
        for value in self.of(call.func):
            if isinstance(value, Partial):
                args = [*value.call.args[1:], *args]
        return bound_arguments(function, args, bound)

    # -- solving -------------------------------------------------------------------------------------------------

    def _solve(self) -> None:
        for node in self._nodes:
            if isinstance(node, cst.Return) and node.value is not None:
                function = self.index.function(node)
                if function is not None:
                    self._returns[function].append(node.value)
        self._repeat()
        self._find_handed_on()
        self._root_parameters()
        self._forget_fields()
        self._repeat()

    def _forget_fields(self) -> None:
        """Drop what stood for an attribute that is stored after all, once the parameters were known."""
        for values in self._table.values():
            values -= {v for v in values if isinstance(v, Field)}

    def _repeat(self) -> None:
        for _ in range(_MOST_PASSES):
            size = self._size()
            self._memo.clear()
            for node in self._nodes:
                self._bind(node)
            if self._size() == size:
                break
        self._memo.clear()

    def _size(self) -> tuple[int, int]:
        return sum(map(len, self._table.values())), sum(map(len, self.calls.values()))

    def _bind(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Assign):
            values = self.of(node.value)
            for target in node.targets:
                self._store(target.target, values)
        elif isinstance(node, (cst.AnnAssign, cst.NamedExpr)) and node.value is not None:
            self._store(node.target, self.of(node.value))
        elif isinstance(node, (cst.For, cst.CompFor)):
            self._store_loop(node.target, node.iter)
        elif isinstance(node, cst.WithItem) and node.asname is not None:
            self._store(node.asname.name, NOTHING)
        elif isinstance(node, cst.Call):
            self._bind_call(node)

    def _store(self, target: cst.CSTNode, values: Iterable[Value]) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            for place, element in enumerate(target.elements):
                self._store(element.value, self.element(values, place))
            return
        for key in self.keys(target):
            self._table[key].update(values)

    def _store_loop(self, target: cst.CSTNode, source: cst.BaseExpression) -> None:
        if isinstance(source, cst.Call) and isinstance(source.func, cst.Name) and isinstance(target, cst.Tuple):
            if source.func.value == "zip":
                for element, arg in zip(target.elements, source.args):
                    self._store(element.value, self.elements(self.of(arg.value)))
                return
            if source.func.value == "enumerate" and len(target.elements) == 2 and source.args:
                self._store_loop(target.elements[1].value, source.args[0].value)
                return
        self._store(target, self.elements(self.of(source)))

    def _bind_call(self, call: cst.Call) -> None:
        for value in self.of(call.func):
            if isinstance(value, ClassValue):
                self.made_instances[call] = value.node
        for function, bound in self.functions_of(call):
            self.calls[function].add(call)
            for param, arg in self.arguments(call, function, bound):
                scope = self.names.inside[function]
                self._table["name", scope, param.name.value].update(self.of(arg))

    def _find_handed_on(self) -> None:
        for node in self._nodes:
            if not isinstance(node, (cst.Name, cst.Attribute)):
                continue
            parent = self.index.parent.get(node)
            called = isinstance(parent, cst.Call) and parent.func is node
            if called or isinstance(parent, (cst.FunctionDef, cst.Attribute, cst.AssignTarget, cst.Decorator)):
                continue
            for value in self.of(node):
                if isinstance(value, FunctionValue) and not self._is_partial_argument(node):
                    self.handed_on.add(value.node)

    def _is_partial_argument(self, node: cst.CSTNode) -> bool:
        call = next((each for each in self.index.ancestors(node) if isinstance(each, cst.Call)), None)
        return call is not None and any(isinstance(value, Partial) for value in self.of(call))

    def _root_parameters(self) -> None:
        """Give the parameters of functions that nothing calls a value of their own."""
        for function, scope in self.names.inside.items():
            if not isinstance(function, cst.FunctionDef) or (self.calls[function] and function not in self.handed_on):
                continue
            for name, binders in list(scope.binders.items()):
                if binders and isinstance(binders[0], cst.Param):
                    self._table["name", scope, name].add(Parameter(binders[0]))

    # -- evaluating ----------------------------------------------------------------------------------------------

    def keys(self, target: cst.CSTNode) -> list[Key]:
        """Return where a value stored in ``target`` is found again."""
        if isinstance(target, cst.Name):
            scope = self.index.scope(target)
            return [("name", self.names.owner(target.value, scope), target.value)]
        if isinstance(target, cst.Attribute):
            owners = {self.classes.family(v.node) for v in self.of(target.value) if isinstance(v, Instance)}
            return [("field", owner, target.attr.value) for owner in _or_none(owners)]
        return []

    def element(self, values: Iterable[Value], place: int) -> frozenset[Value]:
        """Return what the element at ``place`` of each of ``values`` can stand for."""
        found: set[Value] = set()
        for value in values:
            if not isinstance(value, Several):
                continue
            parts = self._parts(value.node)
            if place < len(parts):
                found |= self.of(parts[place])
        return frozenset(found)

    def elements(self, values: Iterable[Value]) -> frozenset[Value]:
        """Return what any element of ``values`` can stand for."""
        parts = [part for value in values if isinstance(value, Several) for part in self._parts(value.node)]
        return frozenset(each for part in parts for each in self.of(part))

    def field_values(self, owner: cst.ClassDef) -> frozenset[Value]:
        """Return everything that is stored on objects of the class ``owner``."""
        family = self.classes.family(owner)
        stored = [values for key, values in self._table.items() if key[:2] == ("field", family)]
        return frozenset(value for values in stored for value in values)

    def _parts(self, node: cst.BaseExpression) -> list[cst.BaseExpression]:
        if isinstance(node, (cst.Tuple, cst.List)):
            return [element.value for element in node.elements]
        if isinstance(node, cst.Dict):
            return [element.value for element in node.elements]
        if isinstance(node, cst.Call):  # amp.initialize
            return [arg for arg in (call_argument(node, 0, "models"), call_argument(node, 1, "optimizers")) if arg]
        if isinstance(node, (cst.ListComp, cst.GeneratorExp)):
            return [node.elt]
        return []

    def _evaluate(self, node: cst.CSTNode) -> frozenset[Value]:
        if isinstance(node, cst.Name):
            return self._name(node)
        if isinstance(node, cst.Attribute):
            return self._attribute(node)
        if isinstance(node, cst.Call):
            return self._call(node)
        if isinstance(node, (cst.Tuple, cst.List, cst.Dict, cst.ListComp, cst.GeneratorExp)):
            return frozenset([Several(node)])
        if isinstance(node, cst.IfExp):
            return self.of(node.body) | self.of(node.orelse)
        if isinstance(node, cst.BooleanOperation):
            return self.of(node.left) | self.of(node.right)
        if isinstance(node, cst.NamedExpr):
            return self.of(node.value)
        if isinstance(node, cst.Subscript):
            return self._subscript(node)
        return NOTHING

    def _name(self, node: cst.Name) -> frozenset[Value]:
        scope = self.index.scope(node)
        owner = self.names.owner(node.value, scope)
        found = set(self._table.get(("name", owner, node.value), ()))
        for binder in owner.binders.get(node.value, ()):
            if isinstance(binder, cst.FunctionDef):
                found.add(FunctionValue(binder))
            elif isinstance(binder, cst.ClassDef):
                found.add(ClassValue(binder))
            elif isinstance(binder, cst.ImportAlias):
                found.update(self._import(binder))
            elif isinstance(binder, cst.Param):
                found |= self._self_parameter(binder)
        return frozenset(found)

    def _import(self, alias: cst.ImportAlias) -> Iterator[Value]:
        site = self._apex.get(alias)
        if site is not None:
            yield Apex(site.stands_for)
            return
        statement = self.index.parent[alias]
        path = dotted_name(alias.name)
        if isinstance(statement, cst.ImportFrom):
            module = dotted_name(statement.module) if statement.module is not None else ""
            yield Imported(f"{'.' * len(statement.relative)}{module}.{path}")
        else:
            yield Imported(path if alias.asname is not None else path.partition(".")[0])

    def _self_parameter(self, param: cst.Param) -> frozenset[Value]:
        parameters = self.index.parent[param]
        function = self.index.parent[parameters]
        if not isinstance(function, cst.FunctionDef) or parameters is not function.params:
            return NOTHING
        owner = self.index.class_of(function)
        if owner is None or not function.params.params or function.params.params[0] is not param:
            return NOTHING
        decorators = {dotted_name(each.decorator) for each in function.decorators}
        if decorators & {"staticmethod", "classmethod"}:
            return NOTHING
        return frozenset(Instance(each) for each in self.classes.with_subclasses(owner))

    def _attribute(self, node: cst.Attribute) -> frozenset[Value]:
        name = node.attr.value
        found: set[Value] = set()
        bases = self.of(node.value)
        for base in bases:
            if isinstance(base, Apex):
                found.add(Apex(f"{base.path}.{name}" if base.path else name))
            elif isinstance(base, Imported):
                found.add(Imported(f"{base.path}.{name}"))
            elif isinstance(base, (Instance, ClassValue)):
                method = self.classes.method(base.node, name)
                if method is not None and _is_alias(method):
                    found |= {value for returned in self._returns[method] for value in self.of(returned)}
                elif method is not None:
                    found.add(FunctionValue(method, bound=isinstance(base, Instance) and not is_static(method)))
        if self._is_super(node.value):
            method = self.classes.inherited(self.index.class_of(self.index.function(node)), name)
            if method is not None:
                found.add(FunctionValue(method, bound=True))
        if any(isinstance(base, (Apex, Imported)) for base in bases):
            return frozenset(found)
        keys = self.keys(node)
        for key in keys:
            found |= self._table.get(key, set())
        if not found and name == "module":  # a wrapped model, unwrapped
            return bases
        if not found:
            found.update(Field(key) for key in keys)
        return frozenset(found)

    @staticmethod
    def _is_super(node: cst.CSTNode) -> bool:
        return isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value == "super"

    def _call(self, call: cst.Call) -> frozenset[Value]:
        func = call.func
        if isinstance(func, cst.Attribute) and func.attr.value in SAME_OBJECT:
            receiver = self.of(func.value)
            if receiver and all(isinstance(v, OBJECTS) for v in receiver):
                return receiver
        found: set[Value] = set()
        for value in self.of(func):
            if isinstance(value, (Apex, Imported)):
                found |= self._library_call(call, value)
            elif isinstance(value, ClassValue):
                is_optimizer = self.own_optimizers.is_one(value.node)
                found.add(Made(call) if is_optimizer else Instance(value.node, call))
            elif isinstance(value, (FunctionValue, Partial)):
                found |= self._returned(call, value)
        return frozenset(found or {Made(call)})

    def _library_call(self, call: cst.Call, value: Apex | Imported) -> set[Value]:
        path = f"apex.{value.path}" if isinstance(value, Apex) else value.path
        if path in INIT:
            return {Apex(HANDLE)}
        if path in INITIALIZE:
            optimizers = call_argument(call, 1, "optimizers")
            models = call_argument(call, 0, "models")
            if models is None:
                return set()
            no_optimizer = optimizers is None or (isinstance(optimizers, cst.Name) and optimizers.value == "None")
            return set(self.of(models)) if no_optimizer else {Several(call)}
        if path in WRAPPERS and call.args:
            return set(self.of(call.args[0].value)) or {Made(call)}
        return {Partial(call)} if path == "functools.partial" else {Made(call)}

    def _returned(self, call: cst.Call, value: FunctionValue | Partial) -> set[Value]:
        functions = [value] if isinstance(value, FunctionValue) else self._partial(value)
        found: set[Value] = set()
        for function in functions:
            if not isinstance(function, FunctionValue):
                continue
            for returned in self._returns[function.node]:
                for each in self.of(returned):
                    # what a helper has just made is known by the call of the helper, so that two calls make two
                    made_at = getattr(each, "call", None)
                    is_new = made_at is not None and self.index.function(made_at) is function.node
                    found.add(made_by(call, each) if is_new else each)
        return found

    def _partial(self, value: Partial) -> frozenset[Value]:
        return self.of(value.call.args[0].value) if value.call.args else NOTHING

    def _subscript(self, node: cst.Subscript) -> frozenset[Value]:
        values = self.of(node.value)
        if len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
            where = node.slice[0].slice.value
            if isinstance(where, cst.Integer):
                return self.element(values, int(where.value, 0))
        return self.elements(values)


def _is_alias(method: cst.FunctionDef) -> bool:
    """A property that returns an attribute: ``def optimizer(self): return self._optimizer``."""
    if [dotted_name(each.decorator) for each in method.decorators] != ["property"]:
        return False
    lines = [
        part
        for line in method.body.body
        for part in (line.body if isinstance(line, cst.SimpleStatementLine) else [line])
    ]
    last = lines[-1] if len(lines) == (2 if method.get_docstring() is not None else 1) else None
    return isinstance(last, cst.Return) and isinstance(last.value, cst.Attribute)


def _or_none(owners: set[cst.ClassDef]) -> list[cst.ClassDef | None]:
    return [*owners] if owners else [None]
