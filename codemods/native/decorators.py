"""Decorators behind which the function runs as it is written."""

from __future__ import annotations

import libcst as cst

from ..tree import decorator_name
from .index import Index
from .solve import Solved
from .values import FunctionValue

#: decorators of Python and torch that hand every argument on, and what the function returns back
_PASSES_ON = {"staticmethod", "classmethod", "torch.no_grad", "torch.enable_grad"}
#: these run the function once, with what the command line says; nobody else calls it with arguments
_ENTRY_POINTS = {
    "click.argument",
    "click.command",
    "click.option",
    "hydra.main",
    "record",
    "torch.distributed.elastic.multiprocessing.errors.record",
}
_MARKS = {"abstractmethod", "abc.abstractmethod", "override", "typing.no_type_check", "typing.override"}
_BRANCHES = (cst.If, cst.For, cst.While, cst.Try, cst.With, cst.Lambda, cst.IfExp, cst.BooleanOperation, cst.BaseComp)


def runs_as_written(decorator: cst.Decorator, solved: Solved) -> bool:
    """Return whether a call of the decorated function runs it once, and nothing else that matters."""
    name = decorator_name(decorator)
    return name in _MARKS or name in _ENTRY_POINTS or passes_arguments_on(decorator, solved)


def passes_arguments_on(decorator: cst.Decorator, solved: Solved) -> bool:
    """Return whether the decorated function takes any new keyword that the function itself takes."""
    if decorator_name(decorator) in _PASSES_ON:
        return True
    found = [v.node for v in solved.of(decorator.decorator) if isinstance(v, FunctionValue)]
    return len(found) == 1 and _is_wrapper(found[0], solved.index)


def _is_wrapper(function: cst.FunctionDef, index: Index) -> bool:
    """``def timed(f): def inner(*args, **kwargs): …; return f(*args, **kwargs)``, then ``return inner``."""
    inner = [each for each in function.body.body if isinstance(each, cst.FunctionDef)]
    if len(inner) != 1 or len(function.params.params) != 1 or function.asynchronous is not None:
        return False
    returned = [
        n.value for n in index.walk(function.body) if isinstance(n, cst.Return) and index.function(n) is function
    ]
    if len(returned) != 1 or not isinstance(returned[0], cst.Name) or returned[0].value != inner[0].name.value:
        return False
    return _calls_once(inner[0], function.params.params[0].name.value, index)


def _calls_once(inner: cst.FunctionDef, name: str, index: Index) -> bool:
    uses = [n for n in index.walk(inner.body) if isinstance(n, cst.Name) and n.value == name]
    calls = [n for n in index.walk(inner.body) if isinstance(n, cst.Call) and n.func in uses]
    calls = [call for call in calls if _hands_everything_on(call, inner.params)]
    if len(calls) != 1 or any(isinstance(n, (cst.Yield, cst.Await)) for n in index.walk(inner.body)):
        return False
    inside = [each for each in index.ancestors(calls[0]) if index.holds(inner.body, each)]
    asks_its_name = all(isinstance(index.parent.get(use), cst.Attribute) or use is calls[0].func for use in uses)
    return asks_its_name and not any(isinstance(each, _BRANCHES) for each in inside) and _gives_back(calls[0], index)


def _hands_everything_on(call: cst.Call, params: cst.Parameters) -> bool:
    star, double = params.star_arg, params.star_kwarg
    if (
        params.params
        or params.kwonly_params
        or not isinstance(star, cst.Param)
        or double is None
        or len(call.args) != 2
    ):
        return False
    given = [(arg.star, arg.value.value if isinstance(arg.value, cst.Name) else "") for arg in call.args]
    return given == [("*", star.name.value), ("**", double.name.value)]


def _gives_back(call: cst.Call, index: Index) -> bool:
    """Return whether what the function returned is returned: at once, or by a name that is bound to nothing else."""
    line = index.parent.get(call)
    if isinstance(line, cst.Return):
        return True
    if not isinstance(line, cst.Assign) or len(line.targets) != 1 or not isinstance(line.targets[0].target, cst.Name):
        return False
    name, inner = line.targets[0].target.value, index.function(call)
    assert inner is not None
    returned = [n.value for n in index.walk(inner.body) if isinstance(n, cst.Return)]
    bound = [
        n for n in index.walk(inner.body) if isinstance(n, cst.AssignTarget) and name in index.module.code_for_node(n)
    ]
    is_returned = all(isinstance(each, cst.Name) and each.value == name for each in returned)
    return bool(returned) and is_returned and len(bound) == 1
