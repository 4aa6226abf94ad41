"""Where a scaler lives, so that every function that needs it has it: a local, ``self``, a parameter, or a closure."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from ..tree import dotted_name
from .decorators import passes_arguments_on
from .index import Index
from .known_calls import INITIALIZE
from .problem import CannotFollow
from .signatures import call_argument
from .solve import Solved
from .values import Apex, Partial


@dataclass(frozen=True)
class Builder:
    """A function that makes model and optimizer, initializes amp and returns them: it returns the scaler as well.

    Args:
        function: the function.
        returned: the tuple that it returns, or the call of ``amp.initialize`` whose result it returns.
        targets: what its callers assign the result to.
    """

    function: cst.FunctionDef
    returned: cst.Tuple | cst.Call
    targets: tuple[cst.Tuple, ...]


@dataclass
class Placement:
    """How to reach the scaler.

    Args:
        attribute: whether it is an attribute of the object (``self.scaler``).
        owner: the class that has it, then.
        parameters: functions that get it as a keyword-only parameter.
        calls: calls that pass it on.
        home: the function that makes it; None for the module.
    """

    home: cst.FunctionDef | None
    attribute: bool = False
    owner: cst.ClassDef | None = None
    parameters: list[cst.FunctionDef] = field(default_factory=list)
    calls: list[cst.Call] = field(default_factory=list)
    available: set[cst.FunctionDef | None] = field(default_factory=set)
    builder: Builder | None = None


class Placing:
    """Finds a placement for one training loop."""

    def __init__(self, solved: Solved) -> None:
        self.solved = solved
        self.index: Index = solved.index

    def place(self, home: cst.FunctionDef | None, users: set[cst.FunctionDef | None]) -> Placement:
        """Return how ``users`` get the scaler that ``home`` makes.

        Raises CannotFollow for a user that can't get it.
        """
        try:
            return self._place(home, users)
        except CannotFollow as problem:
            builder, caller = self._builder(home)
            if builder is None:
                raise
            try:
                placement = self._place(caller, users - {home})
            except CannotFollow:
                raise problem from None
            placement.builder = builder
            return placement

    def _builder(self, home: cst.FunctionDef | None) -> tuple[Builder | None, cst.FunctionDef | None]:
        """Return ``home`` as a builder, and the one function that calls it."""
        if home is None or home in self.solved.handed_on or self.index.class_of(home) is not None:
            return None, None
        returns = [
            n for n in self.index.walk(home.body) if isinstance(n, cst.Return) and self.index.function(n) is home
        ]
        returned = returns[0].value if len(returns) == 1 else None
        calls = self.solved.calls.get(home, set())
        callers = {self.index.function(call) for call in calls}
        size = self._size(returned)
        if not isinstance(returned, (cst.Tuple, cst.Call)) or not size or len(callers) != 1:
            return None, None
        targets = []
        for call in sorted(calls, key=lambda each: self.index.order[each]):
            line = self.index.parent[call]
            target = line.targets[0].target if isinstance(line, cst.Assign) and len(line.targets) == 1 else None
            if not isinstance(target, cst.Tuple) or len(target.elements) != size:
                return None, None
            targets.append(target)
        return Builder(home, returned, tuple(targets)), callers.pop()

    def _size(self, returned: cst.BaseExpression | None) -> int:
        """Return how many values a builder returns; 0 for what isn't seen to be a tuple."""
        if isinstance(returned, cst.Tuple):
            return len(returned.elements)
        if not isinstance(returned, cst.Call):
            return 0
        paths = {f"apex.{v.path}" for v in self.solved.of(returned.func) if isinstance(v, Apex)}
        return 2 if paths & INITIALIZE and call_argument(returned, 1, "optimizers") is not None else 0

    def _place(self, home: cst.FunctionDef | None, users: set[cst.FunctionDef | None]) -> Placement:
        placement = Placement(home)
        owner = self.index.class_of(self._outermost(home))
        if owner is not None and any(self._is_other_method(user, home, owner) for user in users):
            placement.attribute, placement.owner = True, self.solved.classes.family(owner)
            if not self._has_attribute(self._outermost(home) or home, placement):  # type: ignore[arg-type]
                raise CannotFollow("amp is initialized where there is no `self`", home or self.index.module, 26)
            for each in self.solved.classes.members(owner):
                if any(isinstance(node, cst.Name) and node.value == "__slots__" for node in self.index.walk(each.body)):
                    raise CannotFollow(f"`{each.name.value}` has __slots__, so it can't keep a scaler", each, 26)
        placement.available.add(home)
        for user in sorted(users, key=lambda f: -1 if f is None else self.index.order[f]):
            self._reach(user, placement, ())
        return placement

    def _outermost(self, function: cst.FunctionDef | None) -> cst.FunctionDef | None:
        """Return the method or module-level function that ``function`` is nested in, or itself."""
        while function is not None:
            around = self.index.function(function)
            if around is None:
                return function
            function = around
        return None

    def _is_other_method(self, user: cst.FunctionDef | None, home: cst.FunctionDef | None, owner: cst.ClassDef) -> bool:
        outer = self._outermost(user)
        return outer is not self._outermost(home) and self._is_of_family(outer, owner)

    def _is_of_family(self, function: cst.FunctionDef | None, owner: cst.ClassDef) -> bool:
        mine = self.index.class_of(function)
        return mine is not None and self.solved.classes.family(mine) is self.solved.classes.family(owner)

    def _reach(self, user: cst.FunctionDef | None, placement: Placement, path: tuple[object, ...]) -> None:
        if user in placement.available:
            return
        if user is None:
            raise CannotFollow(
                "the module uses amp before or outside the function that initializes it", self.index.module
            )
        if user in path:
            raise CannotFollow(f"`{user.name.value}` calls itself", user, 26)
        if placement.home is None or (placement.attribute and self._has_attribute(user, placement)):
            placement.available.add(user)
            return
        around = self.index.function(user)
        if around is not None and self.index.class_of(user) is None:
            self._reach(around, placement, (*path, user))  # a closure
            placement.available.add(user)
            return
        self._as_parameter(user, placement, path)

    def _has_attribute(self, user: cst.FunctionDef, placement: Placement) -> bool:
        outer = self._outermost(user)
        if outer is None or placement.owner is None or not self._is_of_family(outer, placement.owner):
            return False
        if not outer.params.params or any(
            dotted_name(d.decorator) in ("staticmethod", "classmethod") for d in outer.decorators
        ):
            raise CannotFollow(f"`{outer.name.value}` has no `self` to keep a scaler on", outer, 26)
        return True

    def _as_parameter(self, user: cst.FunctionDef, placement: Placement, path: tuple[object, ...]) -> None:
        name = user.name.value
        calls = self.solved.calls.get(user, set())
        if user in self.solved.handed_on:
            raise CannotFollow(f"`{name}` is handed on as a value, so who calls it can't be seen", user, 26)
        if not calls:
            raise CannotFollow(f"nothing in this file that initializes amp calls `{name}`", user, 26)
        others = [each for each in self.solved.classes.overrides(user) if each is not user]
        if name.startswith("__") or not all(is_abstract(each) for each in others):
            raise CannotFollow(f"`{name}` is overridden or special, so it can't get a scaler as a parameter", user, 26)
        if any(not passes_arguments_on(each, self.solved) for each in user.decorators):
            raise CannotFollow(f"`{name}` is decorated, so it can't get a scaler as a parameter", user, 26)
        placement.available.add(user)
        placement.parameters += [user, *others]
        for call in sorted(calls, key=lambda each: self.index.order[each]):
            passing = self._passing_call(call)
            if any(each is not user and each not in others for each, _ in self.solved.functions_of(call)):
                raise CannotFollow("which function is called can't be seen", call, 26)
            placement.available.discard(user)
            self._reach(self.index.function(passing), placement, (*path, user))
            placement.available.add(user)
            if passing not in placement.calls:
                placement.calls.append(passing)

    def _passing_call(self, call: cst.Call) -> cst.Call:
        """Return the call that fills the parameter: that of ``functools.partial`` where there is one."""
        for value in self.solved.of(call.func):
            if isinstance(value, Partial):
                return value.call
        return call


def is_abstract(function: cst.FunctionDef) -> bool:
    """Return whether a method only says that subclasses have one: ``raise NotImplementedError``, ``pass``, ``…``."""
    if any(dotted_name(each.decorator).endswith("abstractmethod") for each in function.decorators):
        return True
    lines: list[cst.CSTNode] = []
    for line in function.body.body:
        lines += line.body if isinstance(line, cst.SimpleStatementLine) else [line]
    if function.get_docstring() is not None:
        lines = lines[1:]
    return len(lines) <= 1 and all(_does_nothing(each) for each in lines)


def _does_nothing(line: cst.CSTNode) -> bool:
    if isinstance(line, cst.Raise):
        error = line.exc.func if isinstance(line.exc, cst.Call) else line.exc
        return isinstance(error, cst.Name) and error.value == "NotImplementedError"
    return isinstance(line, cst.Pass) or (isinstance(line, cst.Expr) and isinstance(line.value, cst.Ellipsis))


def is_free(name: str, index: Index) -> bool:
    """Return whether nothing in the file is called ``name``, neither a variable nor an attribute or keyword."""
    return all(not (isinstance(node, cst.Name) and node.value == name) for node in index.nodes)
