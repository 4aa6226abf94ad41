"""Which expressions may be half-precision values that a region has computed, wherever they went from there.

They are followed through names, attributes, containers, arguments, results and hooks, whatever the order in which the
file runs.
"""

from __future__ import annotations

from typing import Iterator, Sequence

import libcst as cst

from ..tree import children
from .computing import Computing
from .index import Index
from .operations import HOOKS, words
from .problem import CannotFollow
from .regions import Region, Regions
from .slices import Slices
from .values import ClassValue, FunctionValue, Instance

#: what such a call returns is no half value, whatever it got
_CLEANS = words(
    """
    all any append argmax argmin argsort bool dim double element_size eq equal exists extend float format
    ge get_device gt hasattr id int is_cuda isfinite isinf isinstance isnan item le len long lt ne nelement numel
    print range shape size str tolist type
    """
)
#: methods that keep what they get in the object that they are called on
_KEEPS = words("__setitem__ add append appendleft copy_ enqueue extend insert push put put_nowait setdefault update")
_SPREADING = (
    cst.Assign,
    cst.AnnAssign,
    cst.AugAssign,
    cst.NamedExpr,
    cst.For,
    cst.CompFor,
    cst.Return,
    cst.Call,
    cst.Lambda,
    cst.FunctionDef,
    cst.WithItem,
    cst.Match,
)
_MOST_ROUNDS = 12


class HalfValues:
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

    def find(self, found: Sequence[Region], losses: Sequence[cst.CSTNode]) -> None:
        """Let half values spread from ``found`` and ``losses``. Then ask :meth:`is_half`, as of outside of regions."""
        self._lines = {line for region in found for line in self.regions.lines_of(region)} | set(losses)
        self._find_functions()
        nodes: list[cst.CSTNode] = [node for node in self.index.nodes if isinstance(node, _SPREADING)]
        for _ in range(_MOST_ROUNDS):
            size = len(self._tainted) + len(self._returns)
            for node in nodes:
                self._spread(node)
            if len(self._tainted) + len(self._returns) == size:
                break
        self._is_spreading = False

    def is_half(self, node: cst.CSTNode) -> bool:
        """Return whether ``node`` may be a half value, or hold one."""
        return self._is_half(node)

    def runs_under_autocast(self, node: cst.CSTNode) -> bool:
        """Return whether ``node`` runs in regions alone."""
        return self._is_inside(node, self._only_inside)

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
                in_region = self._is_inside(node, set())
                for target in node.targets:
                    if not in_region or not isinstance(target.target, cst.Name):  # those names are looked up
                        self._taint(target.target)
        elif isinstance(node, (cst.AnnAssign, cst.AugAssign, cst.NamedExpr)):
            if node.value is not None and self._is_half(node.value):
                self._taint(node.target)
        elif isinstance(node, cst.For):
            if self._is_half(node.iter):
                self._taint(node.target)
        elif isinstance(node, cst.CompFor):
            if self._is_half(node.iter):
                self._taint_in_comprehension(node)
        elif isinstance(node, cst.Return):
            function = self.index.function(node)
            if function is not None and node.value is not None and self._is_half(node.value):
                self._returns.add(function)
        elif isinstance(node, cst.Call):
            self._spread_call(node)
        elif isinstance(node, cst.WithItem):
            call = node.item
            given = [arg.value for arg in call.args] if isinstance(call, cst.Call) else []
            if node.asname is not None and any(self._is_half(each) for each in (call, *given)):
                self._taint(node.asname.name)
        elif isinstance(node, cst.Match):
            if self._is_half(node.subject):
                raise CannotFollow("a half-precision value is taken apart by `match`", node, 20)
        elif isinstance(node, (cst.Lambda, cst.FunctionDef)):
            for param in (*node.params.params, *node.params.kwonly_params):
                if param.default is not None and self._is_half(param.default):
                    self._tainted.add(("name", self.solved.names.inside[node], param.name.value))

    def _spread_call(self, call: cst.Call) -> None:
        if not self._is_inside(call, self._inside):
            for function, bound in self.solved.functions_of(call):
                self._spread_arguments(call, function, bound)
        half = [arg.value for arg in call.args if self._is_half(arg.value)]
        if isinstance(call.func, cst.Attribute) and not half and self._is_half(call.func.value):
            self._spread_to_callbacks(call)
        if not half:
            return
        self._tainted.update(
            ("attribute", arg.keyword.value) for arg in call.args if arg.keyword is not None and arg.value in half
        )
        self._spread_fields(call, half)
        self._spread_to_callbacks(call)
        name = last_name(call.func)
        if name in _KEEPS and isinstance(call.func, cst.Attribute):
            self._taint_object(call.func.value)
        if name == "setattr" and len(call.args) == 3:
            attribute = call.args[1].value
            if not isinstance(attribute, cst.SimpleString):
                raise CannotFollow("a half-precision value is stored in an attribute with a computed name", call, 20)
            self._tainted.add(("attribute", attribute.evaluated_value))
        if name == "partial":
            raise CannotFollow("a half-precision value is kept for a later call", call, 20)

    def _spread_arguments(self, call: cst.Call, function: cst.FunctionDef, bound: bool) -> None:
        inside, params = self.solved.names.inside[function], function.params
        named = list(self.solved.arguments(call, function, bound))
        filled = [param for param, argument in named if self._is_half(argument)]
        others = [arg for arg in call.args if all(arg.value is not argument for _, argument in named)]
        if any(self._is_half(arg.value) for arg in others):
            filled += [each for each in (params.star_arg, params.star_kwarg) if isinstance(each, cst.Param)]
        if any(arg.star and self._is_half(arg.value) for arg in call.args):  # which of them it fills can't be seen
            filled += [*params.params, *params.kwonly_params]
        self._tainted.update(("name", inside, each.name.value) for each in filled)

    def _spread_to_callbacks(self, call: cst.Call) -> None:
        """``map(rate, outputs)``, ``outputs.sort(key=rate)``: the function gets the half values one by one."""
        for arg in call.args:
            functions: list[cst.CSTNode] = [v.node for v in self.solved.of(arg.value) if isinstance(v, FunctionValue)]
            functions += [arg.value] if isinstance(arg.value, cst.Lambda) else []
            for each in functions:
                assert isinstance(each, (cst.FunctionDef, cst.Lambda))
                inside = self.solved.names.inside[each]
                self._tainted.update(("name", inside, param.name.value) for param in each.params.params)

    def _spread_fields(self, call: cst.Call, half: Sequence[cst.CSTNode]) -> None:
        """A dataclass has a field for each position."""
        for value in self.solved.of(call.func):
            if isinstance(value, ClassValue) and self.solved.classes.method(value.node, "__init__") is None:
                lines = [p for line in value.node.body.body for p in getattr(line, "body", ())]
                names = [
                    p.target.value for p in lines if isinstance(p, cst.AnnAssign) and isinstance(p.target, cst.Name)
                ]
                for name, arg in zip(names, call.args):
                    if arg.keyword is None and arg.value in half:
                        self._tainted.add(("attribute", name))

    def _taint(self, target: cst.CSTNode) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            for element in target.elements:
                self._taint(element.value)
        elif isinstance(target, (cst.Subscript, cst.StarredElement)):
            self._taint(target.value)
        elif isinstance(target, cst.Attribute):
            if target.attr.value == "__dict__":
                raise CannotFollow("a half-precision value is stored in `__dict__`", target, 20)
            self._tainted.add(("attribute", target.attr.value))
        elif isinstance(target, cst.Name) and target.value not in ("self", "_") and not self._is_local_inside(target):
            self._tainted.update(self.solved.keys(target))

    def _taint_in_comprehension(self, loop: cst.CompFor) -> None:
        """The variables of a comprehension are its own."""
        comprehension = next(each for each in self.index.ancestors(loop) if isinstance(each, cst.BaseComp))
        inside = self.solved.names.inside.get(comprehension)
        names = {each.value for each in self.index.walk(loop.target) if isinstance(each, cst.Name)}
        self._tainted.update(("name", inside, name) for name in names)

    def _taint_object(self, node: cst.BaseExpression) -> None:
        """An object keeps a half value: also by the names that callers have for it."""
        self._taint(node)
        function = self.index.function(node)
        if not isinstance(node, cst.Name) or function is None:
            return
        for call in self.solved.calls.get(function, ()):
            bound = dict(self.solved.functions_of(call)).get(function, False)
            for param, argument in self.solved.arguments(call, function, bound):
                if param.name.value == node.value:
                    self._taint(argument)
        for param in (*function.params.params, *function.params.kwonly_params):
            if param.name.value == node.value and param.default is not None:
                self._taint(param.default)

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
            if ("attribute", node.attr.value) in self._tainted:
                made = None if self._is_spreading else self._made_before(node)
                return made is None or (made is not node and self._is_half(made))
            return self._is_data_of(node)
        if isinstance(node, cst.Call):
            return self._call_is_half(node)
        if isinstance(node, (cst.Comparison, cst.Lambda, cst.FormattedString)):
            return False
        if isinstance(node, cst.DictComp):
            return self._is_half(node.value)
        if isinstance(node, (cst.ListComp, cst.SetComp, cst.GeneratorExp)):
            return self._is_half(node.elt)
        return any(self._is_half(child) for child in children(node))

    def _made_before(self, node: cst.Attribute) -> cst.CSTNode | None:
        """Return what the same run, outside of regions, has stored in the attribute; ``node`` if a call stored it."""
        name, statement = node.attr.value, self.index.statement(node)
        line = self.index.line(statement)
        while True:
            block = self.index.block(line)
            lines = list(block.body)
            for before in reversed(lines[: lines.index(line)] if line in lines else []):
                if any(each in self._lines for each in self.index.walk(before)):
                    return None  # what a region stored there may be what is read
                if not isinstance(before, cst.SimpleStatementLine):
                    continue
                for small in before.body:
                    if isinstance(small, cst.Assign) and any(_is_attribute(t.target, name) for t in small.targets):
                        return small.value
                    if any(self._stores(call, name) for call in self.index.walk(small) if isinstance(call, cst.Call)):
                        return node
            outer = next((n for n in self.index.ancestors(line) if isinstance(n, cst.BaseCompoundStatement)), None)
            if outer is None or isinstance(outer, (cst.FunctionDef, cst.ClassDef)):
                return None
            line = outer

    def _stores(self, call: cst.Call, name: str) -> bool:
        """Return whether ``call`` runs a function of this file that surely stores to the attribute ``name``."""
        for function, _ in self.solved.functions_of(call):
            if function.name.value == "__init__":
                continue
            smalls = [small for line in function.body.body for small in getattr(line, "body", ())]
            for small in smalls if isinstance(function.body, cst.IndentedBlock) else ():
                if isinstance(small, cst.Assign) and any(_is_attribute(t.target, name) for t in small.targets):
                    return True
        return False

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
        if owner is scope and owner.kind == "function":
            reaching = [statement for statement, _ in self.slices.reaching(node.value, node)]
            if reaching and not any(self._is_inside(each, set()) for each in reaching):
                return False
        for binder in owner.binders.get(node.value, ()):
            if self._is_inside(binder, set()) and not isinstance(binder, (cst.FunctionDef, cst.ClassDef)):
                value = getattr(self.index.statement(binder), "value", None)
                if value is None or self._is_computed(value):
                    return True
        return False

    def _is_computed(self, value: cst.CSTNode) -> bool:
        if isinstance(value, cst.Call):
            name = last_name(value.func)
            return name not in _CLEANS
        return not isinstance(value, (cst.BaseNumber, cst.SimpleString, cst.Comparison))

    def _is_number(self, node: cst.Name) -> bool:
        scope = self.index.scope(node)
        binders = self.solved.names.owner(node.value, scope).binders.get(node.value, ())
        values = [getattr(self.index.statement(b), "value", None) for b in binders if not isinstance(b, cst.Param)]
        return (
            bool(values) and len(values) == len(binders) and not any(v is None or self._is_computed(v) for v in values)
        )

    def _may_return_half(self, func: cst.Attribute) -> bool:
        """Return whether a method of that name, of an object that can't be followed, is one of this file's."""
        methods = [self.solved.classes.method(each, func.attr.value) for each in self.solved.classes.all]
        return any(each in self._returns and each not in self._inside for each in methods if each is not None)

    def _gives_half(self, node: cst.ClassDef) -> bool:
        """A dataset, or anything else that is gone through, of half values."""
        methods = [self.solved.classes.method(node, name) for name in ("__getitem__", "__iter__", "__next__")]
        return any(method in self._returns for method in methods if method is not None)

    def _call_is_half(self, call: cst.Call) -> bool:
        name = last_name(call.func)
        if name in _CLEANS:
            return False
        own = [function for function, _ in self.solved.functions_of(call)]
        if own:
            if any(function in self._returns and function not in self._inside for function in own):
                return True
            if self._is_inside(call, self._inside) and self._is_spreading:
                return any(function in self._returns for function in own)
            return any(self._is_half(arg.value) for arg in call.args)
        classes = [value.node for value in self.solved.of(call.func) if isinstance(value, ClassValue)]
        if classes:
            return any(self._gives_half(each) for each in classes)
        if any(isinstance(value, Instance) for value in self.solved.of(call.func)):
            return False
        if isinstance(call.func, cst.Attribute) and self._may_return_half(call.func):
            return True
        parts: list[cst.CSTNode] = [arg.value for arg in call.args]
        if isinstance(call.func, cst.Attribute) and not self.slices.is_object(call.func.value):
            parts.append(call.func.value)
        if self._is_inside(call, self._inside if self._is_spreading else set()) and self.computing.call_computes(call):
            return True
        return any(self._is_half(part) for part in parts)


def _is_attribute(target: cst.BaseExpression, name: str) -> bool:
    if isinstance(target, cst.Tuple):
        return any(_is_attribute(element.value, name) for element in target.elements)
    return isinstance(target, cst.Attribute) and target.attr.value == name


def last_name(func: cst.BaseExpression) -> str:
    if isinstance(func, cst.Attribute):
        return func.attr.value
    return func.value if isinstance(func, cst.Name) else ""
