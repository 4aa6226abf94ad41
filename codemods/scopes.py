"""Which scope a name belongs to: Python's own rules, for the names that are asked about.

One walk records, per scope, the names bound in it, and every use of a name. Resolving happens on demand.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Callable, Union

import libcst as cst

from .tree import children

ImportStatement = Union[cst.Import, cst.ImportFrom]
#: what binds a name: the alias of an import, or any other node
Binder = cst.CSTNode


@dataclass(eq=False)
class Scope:
    """A module, class, function (also a lambda) or comprehension, and what is bound directly in it."""

    kind: str
    parent: Scope | None = None
    binders: dict[str, list[Binder]] = field(default_factory=lambda: defaultdict(list))
    global_names: set[str] = field(default_factory=set)
    nonlocal_names: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Use:
    """A place where a name is read, with the attributes read from it at once: ``apex.amp.x`` → ``("amp", "x")``."""

    name: str
    attributes: tuple[str, ...]
    node: cst.CSTNode
    parent: cst.CSTNode
    scope: Scope


class Names:
    """Every scope, use and import statement of a module. Build it with :func:`names_of`."""

    def __init__(self) -> None:
        self.module = Scope("module")
        self.uses: dict[str, list[Use]] = defaultdict(list)
        self.imports: list[tuple[ImportStatement, Scope]] = []
        #: function, lambda, class or comprehension → the scope inside it
        self.inside: dict[cst.CSTNode, Scope] = {}

    def owner(self, name: str, scope: Scope) -> Scope:
        """Return the scope that ``name`` belongs to when it is read or bound in ``scope``.

        A name that no enclosing scope binds belongs to the module, as at run time (or it is a builtin).
        """
        if name in scope.global_names:
            return self.module
        if name in scope.binders and name not in scope.nonlocal_names:
            return scope
        outer = scope.parent
        while outer is not None:
            # a function doesn't see the names of the class it stands in
            if outer.kind != "class" and (name in outer.binders or name in outer.global_names):
                return self.owner(name, outer)
            outer = outer.parent
        return self.module

    def binders(self, name: str, scope: Scope) -> list[Binder]:
        """Return everything that binds ``name`` in the scope it belongs to, ``global`` and ``nonlocal`` included."""
        return self.owner(name, scope).binders.get(name, [])


def names_of(module: cst.Module) -> Names:
    """Walk ``module`` once and return its names."""
    collector = _Collector()
    collector.run(module)
    return collector.names


class _Collector:
    """The walk: a list of (node, parent, scope) still to look at, and a table of node types that need care."""

    def __init__(self) -> None:
        self.names = Names()
        self.waiting: list[tuple[cst.CSTNode, cst.CSTNode, Scope]] = []
        #: bindings made under ``global`` or ``nonlocal`` find their scope when all scopes are known
        self.bound: list[tuple[Scope, str, Binder]] = []

    def run(self, module: cst.Module) -> None:
        self.below(module, self.names.module)
        while self.waiting:
            node, parent, scope = self.waiting.pop()
            handle = _HANDLERS.get(type(node))
            if handle is None:
                self.below(node, scope)
            else:
                handle(self, node, parent, scope)
        for scope, name, binder in self.bound:
            if name in scope.global_names or name in scope.nonlocal_names:
                self.names.owner(name, scope).binders[name].append(binder)

    def below(self, node: cst.CSTNode, scope: Scope) -> None:
        self.waiting.extend([(child, node, scope) for child in children(node)])

    def push(self, node: cst.CSTNode | None, parent: cst.CSTNode, scope: Scope) -> None:
        if node is not None:
            self.waiting.append((node, parent, scope))

    def bind(self, name: str, binder: Binder, scope: Scope) -> None:
        scope.binders[name].append(binder)
        self.bound.append((scope, name, binder))

    def target(self, node: cst.CSTNode, parent: cst.CSTNode, scope: Scope) -> None:
        """Bind the names of an assignment target; what it only reads (``a`` of ``a.b = 1``) stays a use."""
        if isinstance(node, cst.Name):
            self.bind(node.value, node, scope)
        elif isinstance(node, (cst.Tuple, cst.List)):
            for element in node.elements:
                self.target(element.value, node, scope)
        else:
            self.push(node, parent, scope)

    # -- names ---------------------------------------------------------------------------------------------------

    def name(self, node: cst.Name, parent: cst.CSTNode, scope: Scope) -> None:
        self.names.uses[node.value].append(Use(node.value, (), node, parent, scope))

    def attribute(self, node: cst.Attribute, parent: cst.CSTNode, scope: Scope) -> None:
        attributes: list[str] = []
        base: cst.BaseExpression = node
        below: cst.CSTNode = node
        while isinstance(base, cst.Attribute):
            attributes.append(base.attr.value)
            below, base = base, base.value
        if isinstance(base, cst.Name):
            use = Use(base.value, tuple(reversed(attributes)), node, parent, scope)
            self.names.uses[base.value].append(use)
        else:
            self.push(base, below, scope)

    def argument(self, node: cst.Arg, parent: cst.CSTNode, scope: Scope) -> None:
        self.push(node.value, parent, scope)

    # -- imports -------------------------------------------------------------------------------------------------

    def import_(self, node: ImportStatement, parent: cst.CSTNode, scope: Scope) -> None:
        self.names.imports.append((node, scope))
        if isinstance(node.names, cst.ImportStar):
            return
        for alias in node.names:
            self.bind(bound_name(alias), alias, scope)

    # -- statements and expressions that bind ----------------------------------------------------------------------

    def with_target(self, node: cst.CSTNode, parent: cst.CSTNode, scope: Scope) -> None:
        assert isinstance(node, (cst.AssignTarget, cst.AugAssign, cst.AnnAssign, cst.For, cst.Del))
        target = node.target
        self.target(target, node, scope)
        for child in children(node):
            if child is not target:
                self.push(child, node, scope)

    def as_name(self, node: cst.AsName, parent: cst.CSTNode, scope: Scope) -> None:
        self.target(node.name, node, scope)

    def walrus(self, node: cst.NamedExpr, parent: cst.CSTNode, scope: Scope) -> None:
        around = scope
        while around.kind == "comprehension" and around.parent is not None:
            around = around.parent
        self.target(node.target, node, around)
        self.push(node.value, node, scope)

    def global_(self, node: cst.Global, parent: cst.CSTNode, scope: Scope) -> None:
        scope.global_names.update(item.name.value for item in node.names)

    def nonlocal_(self, node: cst.Nonlocal, parent: cst.CSTNode, scope: Scope) -> None:
        scope.nonlocal_names.update(item.name.value for item in node.names)

    def match_name(self, node: cst.CSTNode, parent: cst.CSTNode, scope: Scope) -> None:
        """``case x``, ``case [*x]``, ``case {**x}``: all of them bind."""
        bound = getattr(node, "rest" if isinstance(node, cst.MatchMapping) else "name")
        if isinstance(bound, cst.Name):
            self.bind(bound.value, bound, scope)
        for child in children(node):
            if child is not bound:
                self.push(child, node, scope)

    def match_keyword(self, node: cst.MatchKeywordElement, parent: cst.CSTNode, scope: Scope) -> None:
        self.push(node.pattern, node, scope)

    # -- new scopes ------------------------------------------------------------------------------------------------

    def function(self, node: cst.FunctionDef, parent: cst.CSTNode, scope: Scope) -> None:
        self.bind(node.name.value, node, scope)
        inner = self.names.inside[node] = Scope("function", scope)
        for decorator in node.decorators:
            self.push(decorator, node, scope)
        self.push(node.returns, node, scope)
        self.push(getattr(node, "type_parameters", None), node, inner)
        self.parameters(node.params, inner, scope)
        self.push(node.body, node, inner)

    def lambda_(self, node: cst.Lambda, parent: cst.CSTNode, scope: Scope) -> None:
        inner = self.names.inside[node] = Scope("function", scope)
        self.parameters(node.params, inner, scope)
        self.push(node.body, node, inner)

    def parameters(self, params: cst.Parameters, inner: Scope, outer: Scope) -> None:
        for param in children(params):
            if isinstance(param, cst.Param):
                self.bind(param.name.value, param, inner)
                self.push(param.default, param, outer)
                self.push(param.annotation, param, outer)

    def class_(self, node: cst.ClassDef, parent: cst.CSTNode, scope: Scope) -> None:
        self.bind(node.name.value, node, scope)
        inner = self.names.inside[node] = Scope("class", scope)
        for part in (*node.decorators, *node.bases, *node.keywords):
            self.push(part, node, scope)
        self.push(getattr(node, "type_parameters", None), node, inner)
        self.push(node.body, node, inner)

    def comprehension(self, node: cst.BaseComp, parent: cst.CSTNode, scope: Scope) -> None:
        inner = self.names.inside[node] = Scope("comprehension", scope)
        loop: cst.CompFor | None = node.for_in
        where = scope  # only the first iterable is computed outside
        for part in children(node):
            if part is not loop:
                self.push(part, node, inner)
        while loop is not None:
            self.push(loop.iter, loop, where)
            self.target(loop.target, loop, inner)
            for condition in loop.ifs:
                self.push(condition.test, condition, inner)
            loop, where = loop.inner_for_in, inner


def bound_name(alias: cst.ImportAlias) -> str:
    """Return the local name that an import alias binds: ``a`` for ``import a.b``, ``c`` for ``import a.b as c``."""
    if alias.asname is not None:
        asname = alias.asname.name
        return asname.value if isinstance(asname, cst.Name) else ""
    node: cst.CSTNode = alias.name
    while isinstance(node, cst.Attribute):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""


_Handler = Callable[..., None]
_HANDLERS: dict[type[cst.CSTNode], _Handler] = {
    cst.Name: _Collector.name,
    cst.Attribute: _Collector.attribute,
    cst.Arg: _Collector.argument,
    cst.Import: _Collector.import_,
    cst.ImportFrom: _Collector.import_,
    cst.AssignTarget: _Collector.with_target,
    cst.AugAssign: _Collector.with_target,
    cst.AnnAssign: _Collector.with_target,
    cst.For: _Collector.with_target,
    cst.Del: _Collector.with_target,
    cst.AsName: _Collector.as_name,
    cst.NamedExpr: _Collector.walrus,
    cst.Global: _Collector.global_,
    cst.Nonlocal: _Collector.nonlocal_,
    cst.MatchAs: _Collector.match_name,
    cst.MatchStar: _Collector.match_name,
    cst.MatchMapping: _Collector.match_name,
    cst.MatchKeywordElement: _Collector.match_keyword,
    cst.FunctionDef: _Collector.function,
    cst.Lambda: _Collector.lambda_,
    cst.ClassDef: _Collector.class_,
    cst.ListComp: _Collector.comprehension,
    cst.SetComp: _Collector.comprehension,
    cst.GeneratorExp: _Collector.comprehension,
    cst.DictComp: _Collector.comprehension,
}
