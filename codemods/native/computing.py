"""Which code computes with tensors in a way that autocast changes, and which code changes weights."""

from __future__ import annotations

from typing import Iterator

import libcst as cst

from ..tree import children, walk
from .index import Index
from .objects import Objects
from .operations import BUILTINS, BUILTINS_THAT_COMPUTE, HOOKS, LOWERED, NEUTRAL, TORCH_NEUTRAL
from .slices import Slices
from .solve import Solved
from .values import OBJECTS, Apex, ClassValue, FunctionValue, Imported, Instance, Made, Value

#: methods that give a module its first weights, called by constructors and outside of training
_INITIALIZERS = ("reset_parameters", "_reset_parameters", "init_weights", "_init_weights")


class Computing:
    """Answers for the expressions of one file."""

    def __init__(self, objects: Objects, slices: Slices) -> None:
        self.objects = objects
        self.slices = slices
        self.solved: Solved = objects.solved
        self.index: Index = objects.index
        self._functions: dict[cst.FunctionDef, bool] = {}
        self._frozen_models: frozenset[Value] | None = None
        self._hooks: bool | None = None
        self._weights: dict[cst.FunctionDef, bool] = {}

    # -- computing -----------------------------------------------------------------------------------------------

    def computes(self, node: cst.CSTNode) -> bool:
        """Return whether running ``node`` computes something that autocast can change."""
        waiting = [node]
        while waiting:
            each = waiting.pop()
            if isinstance(each, (cst.FunctionDef, cst.Lambda, cst.ClassDef)) and each is not node:
                continue
            if isinstance(each, cst.BinaryOperation) and _depends_on_autocast(each):
                return True
            if isinstance(each, cst.Call) and self.call_computes(each):
                return True
            waiting.extend(children(each))
        return False

    def call_computes(self, call: cst.Call) -> bool:
        values = self.solved.of(call.func)
        own = [value.node for value in values if isinstance(value, FunctionValue)]
        if own:
            return any(self.function_computes(each) for each in own)
        if any(isinstance(value, ClassValue) for value in values):
            return False
        if any(isinstance(value, Instance) for value in values):
            return True
        paths = [f"apex.{v.path}" if isinstance(v, Apex) else v.path for v in values if isinstance(v, (Apex, Imported))]
        if paths:
            return any(self._path_computes(path, call) for path in paths)
        if any(isinstance(value, OBJECTS) for value in values):  # a model or criterion that was made elsewhere
            name = _name(call.func)
            return not (isinstance(call.func, cst.Attribute) and name in NEUTRAL)
        return self._unknown_computes(call)

    def _path_computes(self, path: str, call: cst.Call) -> bool:
        last = path.rpartition(".")[2]
        if path.startswith(("torch.optim", "torch.utils", "torch.cuda", "torch.distributed", "torch.autograd.grad")):
            return False
        if path.startswith(("torch.nn.functional.", "torch.nn.parallel.")):
            return path.startswith("torch.nn.functional.") and last not in ("pad", "one_hot", "interpolate", "dropout")
        if path.startswith("torch.nn."):
            return False  # the constructor of a module
        if path.startswith("torch.") or path.startswith("torch"):
            return last not in TORCH_NEUTRAL and not last[:1].isupper()
        if last[:1].isupper() or last in NEUTRAL:
            return False
        return self._gets_model(call) or not path.startswith(
            ("numpy", "math", "os", "random", "time", "json", "copy", "sys")
        )

    def _unknown_computes(self, call: cst.Call) -> bool:
        name = _name(call.func)
        if not name:
            return True  # nn.CrossEntropyLoss()(output, target)
        if isinstance(call.func, cst.Name):
            return name in BUILTINS_THAT_COMPUTE or (name not in NEUTRAL and name not in BUILTINS)
        return name not in NEUTRAL

    def _gets_model(self, call: cst.Call) -> bool:
        return any(self.slices.is_object(arg.value) for arg in call.args)

    def function_computes(self, function: cst.FunctionDef) -> bool:
        """Return whether calling ``function`` computes something that autocast can change."""
        if function not in self._functions:
            self._functions[function] = False  # while it's looked at: recursion adds nothing
            self._functions[function] = self.computes(function.body)
        return self._functions[function]

    def involves_model(self, node: cst.CSTNode) -> bool:
        """Return whether ``node`` calls a model or criterion, or hands one to what it calls."""
        for call in self.index.walk(node):
            if isinstance(call, cst.Call) and self.call_computes(call):
                if self.slices.is_object(call.func) and any(isinstance(v, OBJECTS) for v in self.solved.of(call.func)):
                    return True
                if self._gets_model(call) or any(
                    self.involves_model(function.body) for function, _ in self.solved.functions_of(call)
                ):
                    return True
        return False

    def lowers(self, node: cst.CSTNode) -> bool:
        """Return whether ``node`` runs what autocast does in half precision even on float32 data."""
        for each in self.index.walk(node):
            if isinstance(each, cst.BinaryOperation) and isinstance(each.operator, cst.MatrixMultiply):
                return True
            if isinstance(each, cst.Call):
                if _name(each.func) in LOWERED:
                    return True
                if any(self.lowers(function.body) for function, _ in self.solved.functions_of(each)):
                    return True
        return False

    # -- weights -------------------------------------------------------------------------------------------------

    def changes_weights(self, node: cst.CSTNode) -> bool:
        """Return whether running ``node`` changes weights in place: steps, loads, clamps, averages, perturbations."""
        waiting = [node]
        while waiting:
            each = waiting.pop()
            if isinstance(each, (cst.FunctionDef, cst.Lambda, cst.ClassDef)) and each is not node:
                continue
            if isinstance(each, cst.Call) and self._call_changes_weights(each):
                return True
            if isinstance(each, (cst.Assign, cst.AugAssign)) and self._stores_data(each):
                return True
            waiting.extend(children(each))
        return False

    def _call_changes_weights(self, call: cst.Call) -> bool:
        for function, _ in self.solved.functions_of(call):
            if self.function_changes_weights(function):
                return True
        name = _name(call.func)
        if name in _INITIALIZERS and isinstance(call.func, cst.Attribute):
            return not self._stands_in_constructor(call)
        if self._runs_hooks(call) and self._hooks_change_weights():
            return True
        if name == "setattr" or name.startswith("_foreach_") or self._is_initializer(call) or self._is_step(call):
            return True
        if name in ("load_state_dict", "parameters_to_vector", "vector_to_parameters", "swap_parameters"):
            return name != "parameters_to_vector"
        if not isinstance(call.func, cst.Attribute) or not name.endswith("_") or name.startswith("_"):
            return False
        return name not in (
            "requires_grad_",
            "clip_grad_norm_",
            "clip_grad_value_",
            "share_memory_",
        ) and self._is_weight(call.func.value)

    def _is_initializer(self, call: cst.Call) -> bool:
        """``nn.init.normal_(layer.weight)``, outside a constructor."""
        paths = [value.path for value in self.solved.of(call.func) if isinstance(value, Imported)]
        return any(path.startswith("torch.nn.init.") for path in paths) and not self._stands_in_constructor(call)

    def _is_step(self, call: cst.Call) -> bool:
        """The step of an optimizer, also of one that amp doesn't have."""
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "step":
            return False
        makers = [value.call for value in self.solved.of(call.func.value) if isinstance(value, Made)]
        made_by = [value for maker in makers for value in self.solved.of(maker.func)]
        if any(isinstance(v, ClassValue) and self.solved.own_optimizers.is_one(v.node) for v in made_by):
            return True
        paths = [value.path for value in made_by if isinstance(value, Imported)]
        return any(path.startswith("torch.optim.") and "lr_scheduler" not in path for path in paths)

    def _stores_data(self, node: cst.Assign | cst.AugAssign) -> bool:
        targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
        for target in targets:
            base = target.value if isinstance(target, cst.Subscript) else target
            if isinstance(base, cst.Attribute) and self._stores_weight(base) and not self._stands_in_constructor(node):
                return True
            is_part = isinstance(target, cst.Subscript) or isinstance(node, cst.AugAssign)
            if is_part and (self._is_weight(base) or self._is_of_model(base)):
                return True
        return False

    def _stores_weight(self, target: cst.Attribute) -> bool:
        """``m.weight = …`` of a module, ``p.data = …`` of a parameter."""
        if target.attr.value == "data":
            return not isinstance(target.value, cst.Name) or self._is_weight(target.value)
        return target.attr.value in ("weight", "bias") and not isinstance(target.value, cst.Name)

    def _stands_in_constructor(self, node: cst.CSTNode) -> bool:
        function = self.index.function(node)
        return function is not None and (function.name.value == "__init__" or function.name.value in _INITIALIZERS)

    def _is_weight(self, node: cst.BaseExpression) -> bool:
        """Return whether ``node`` is a parameter: the variable of a loop over parameters, or ``x.weight``."""
        while isinstance(node, (cst.Attribute, cst.Subscript)):
            if isinstance(node, cst.Attribute) and node.attr.value in ("weight", "bias", "data"):
                return node.attr.value != "data" or not self._is_own_field(node)
            if isinstance(node, cst.Attribute) and node.attr.value == "grad":
                return False
            if isinstance(node, cst.Attribute) and self._is_parameter(node):
                return True
            node = node.value
        if not isinstance(node, cst.Name):
            return False
        if self._is_parameter(node) or any(self._is_weight(each) for each in self._bound_to(node)):
            return True
        for outer in self.index.ancestors(node):
            if isinstance(outer, (cst.For, cst.CompFor)) and _binds(outer.target, node.value):
                if self._goes_over(outer, node.value) & self._frozen():
                    return False
                return _mentions_parameters(outer.iter) or isinstance(outer.iter, (cst.Name, cst.Attribute))
            if isinstance(outer, cst.FunctionDef):
                return False
        return False

    def _is_parameter(self, node: cst.BaseExpression) -> bool:
        """Return whether ``node`` was made by ``nn.Parameter(…)``."""
        for value in self.solved.of(node):
            made = self.solved.of(value.call.func) if isinstance(value, Made) else ()
            if any(isinstance(each, Imported) and each.path.endswith(".Parameter") for each in made):
                return True
        return False

    def _bound_to(self, node: cst.Name) -> list[cst.BaseExpression]:
        """Return the attributes that a name stands for: ``w = model.head.weight``."""
        owner = self.solved.names.owner(node.value, self.index.scope(node))
        lines = [self.index.parent.get(self.index.parent.get(b, b)) for b in owner.binders.get(node.value, ())]
        return [line.value for line in lines if isinstance(line, cst.Assign) and isinstance(line.value, cst.Attribute)]

    # -- frozen models -----------------------------------------------------------------------------------------------

    def _frozen(self) -> frozenset[Value]:
        """Return the models whose parameters never require a gradient: autocast keeps no casts of those.

        Source: torch's cached_cast (aten/src/ATen/autocast_mode.cpp).
        """
        if self._frozen_models is None:
            off: set[Value] = set()
            on: set[Value] = set()
            for node in self.index.nodes:
                for target in node.targets if isinstance(node, cst.Assign) else ():
                    assert isinstance(node, cst.Assign)
                    part = target.target
                    if isinstance(part, cst.Attribute) and part.attr.value == "requires_grad":
                        is_off = isinstance(node.value, cst.Name) and node.value.value == "False"
                        (off if is_off else on).update(self._models_of_variable(part.value))
            self._frozen_models = frozenset(off - on)
        return self._frozen_models

    def _models_of_variable(self, node: cst.BaseExpression) -> frozenset[Value]:
        for outer in self.index.ancestors(node):
            if isinstance(outer, cst.For) and isinstance(node, cst.Name) and _binds(outer.target, node.value):
                return self._goes_over(outer, node.value)
        return frozenset()

    def _goes_over(self, loop: cst.For | cst.CompFor, name: str) -> frozenset[Value]:
        """Return the models whose parameters ``name`` goes through: of ``zip``, those at its place."""
        sources = [loop.iter]
        if isinstance(loop.iter, cst.Call) and _name(loop.iter.func) == "zip" and isinstance(loop.target, cst.Tuple):
            pairs = zip(loop.target.elements, loop.iter.args)
            sources = [arg.value for element, arg in pairs if _binds(element.value, name)]
        found = [
            each.func.value
            for source in sources
            for each in self.index.walk(source)
            if isinstance(each, cst.Call)
            and isinstance(each.func, cst.Attribute)
            and each.func.attr.value == "parameters"
        ]
        return frozenset(value for model in found for value in self.objects.values(model))

    # -- hooks -------------------------------------------------------------------------------------------------------

    def _runs_hooks(self, call: cst.Call) -> bool:
        return self.slices.is_object(call.func) and any(isinstance(v, OBJECTS) for v in self.solved.of(call.func))

    def _hooks_change_weights(self) -> bool:
        """Return whether a function that modules call in their forward changes weights."""
        if self._hooks is None:
            self._hooks = False  # while it's looked at
            self._hooks = any(self.changes_weights(body) for body in self._hook_bodies())
        return self._hooks

    def _hook_bodies(self) -> Iterator[cst.CSTNode]:
        for call in self.index.nodes:
            if isinstance(call, cst.Call) and _name(call.func) in HOOKS and call.args:
                hook = call.args[0].value
                if isinstance(hook, cst.Lambda):
                    yield hook.body
                yield from (v.node.body for v in self.solved.of(hook) if isinstance(v, FunctionValue))

    def _is_own_field(self, node: cst.Attribute) -> bool:
        """Return whether ``node`` is a field of an object that is no tensor, such as ``self.data`` of a buffer."""
        values = self.solved.of(node.value)
        if not values or not all(isinstance(v, Instance) and not _is_tensor_class(v.node) for v in values):
            return False
        stored = list(self._stored_in(node))
        return bool(stored) and all(_is_container(each) for each in stored)

    def _stored_in(self, node: cst.Attribute) -> Iterator[cst.BaseExpression]:
        """Yield what the file stores in the attribute ``node``."""
        keys = set(self.solved.keys(node))
        for each in self.index.nodes:
            for target in each.targets if isinstance(each, cst.Assign) else ():
                assert isinstance(each, cst.Assign)
                for part, value in _side_by_side(target.target, each.value):
                    if isinstance(part, cst.Attribute) and keys & set(self.solved.keys(part)):
                        yield value

    def _is_of_model(self, node: cst.BaseExpression) -> bool:
        """Return whether ``node`` is an attribute of a model: ``model.kernel.data``. Not a gradient."""
        depth = 0
        while isinstance(node, (cst.Attribute, cst.Subscript)):
            if isinstance(node, cst.Attribute) and node.attr.value == "grad":
                return False
            node, depth = node.value, depth + 1
            if isinstance(node, (cst.Name, cst.Attribute)) and self.objects.values(node) & self.slices.models:
                return True
        return False

    def function_changes_weights(self, function: cst.FunctionDef) -> bool:
        """Return whether calling ``function`` changes weights in place."""
        if function not in self._weights:
            self._weights[function] = False
            name = function.name.value
            self._weights[function] = name not in _INITIALIZERS and self.changes_weights(function.body)
        return self._weights[function]


def _side_by_side(
    target: cst.BaseExpression, value: cst.BaseExpression
) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Yield what an assignment binds to what, tuple by tuple."""
    if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple) and len(target.elements) == len(value.elements):
        for left, right in zip(target.elements, value.elements):
            yield from _side_by_side(left.value, right.value)
    else:
        yield target, value


def _is_container(node: cst.BaseExpression) -> bool:
    """A list, dict or queue; and None, which one takes the place of."""
    if isinstance(node, cst.Call):
        return _name(node.func) in ("list", "dict", "set", "deque", "defaultdict", "OrderedDict")
    is_none = isinstance(node, cst.Name) and node.value == "None"
    return is_none or isinstance(node, (cst.List, cst.Dict, cst.Set, cst.ListComp, cst.DictComp))


def _is_tensor_class(node: cst.ClassDef) -> bool:
    return any(_name(base.value) in ("Parameter", "Tensor", "Buffer") for base in node.bases)


def _name(node: cst.BaseExpression) -> str:
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def _is_number(node: cst.BaseExpression) -> bool:
    return isinstance(node, (cst.Integer, cst.Float))


def _binds(target: cst.CSTNode, name: str) -> bool:
    return any(isinstance(each, cst.Name) and each.value == name for each in walk(target))


def _mentions_parameters(node: cst.CSTNode) -> bool:
    return any(
        isinstance(each, cst.Attribute)
        and each.attr.value in ("parameters", "named_parameters", "param_groups", "state_dict", "buffers", "modules")
        for each in walk(node)
    )


def _depends_on_autocast(node: cst.BinaryOperation) -> bool:
    """``a @ b`` is cast down, ``x ** 2`` up; a power of a number is none of a tensor."""
    if isinstance(node.operator, cst.MatrixMultiply):
        return True
    return isinstance(node.operator, cst.Power) and not _is_number(node.left)
