"""What each call and attribute of a file does to the gradients of its optimizers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Sequence

import libcst as cst

from .half_sites import HalfUses
from .index import Index
from .loss_scales import ScaleRead
from .objects import Entity, Objects
from .operations import BUILTINS, words
from .problem import CannotFollow
from .reach import Reach
from .signatures import call_argument
from .sites import ScaleLoss, Sites
from .solve import Solved
from .states import Event
from .values import OBJECTS, Apex, FunctionValue, Imported, Instance, Made, Partial, Value

#: torch's functions that read or change gradients
_GRADIENT_FUNCTIONS = {
    "torch.nn.utils.clip_grad_norm_",
    "torch.nn.utils.clip_grad_norm",
    "torch.nn.utils.clip_grad_value_",
    "torch.nn.utils.clip_grad.clip_grad_norm_",
    "torch.nn.utils.clip_grad.clip_grad_value_",
    "torch.nn.utils.clip_grads_with_norm_",
    "torch.nn.utils.get_total_norm",
    "apex.contrib.clip_grad.clip_grad_norm_",
}
#: methods of an optimizer that don't concern gradients
_OPTIMIZER_METHODS = {"state_dict", "load_state_dict", "add_param_group", "register_step_post_hook", "share_memory"}
#: parts of the names of unknown functions that don't look at gradients, though they get a model or an optimizer
_HARMLESS = words(
    """
    save saver eval evaluate evaluation validate validation valid val test tests log logger print lr sched scheduler
    schedule warmup anneal annealing plateau state checkpoint checkpoints load parallel info debug warning watch summary
    summarize count dataloader dataset predict infer inference generate sample device deepcopy
    """
)
_CALLBACK_STEPS = ("sched", "lr", "warmup", "anneal", "plateau", "profil", "swa", "meter", "timer", "progress", "bar")


@dataclass(frozen=True)
class Happening:
    """One event at one node. ``optimizers`` is None where it may be any of them."""

    event: Event
    node: cst.CSTNode
    optimizers: tuple[Entity, ...] | None = None
    site: ScaleLoss | None = None


class Events:
    """The happenings of every node, found once."""

    def __init__(
        self, objects: Objects, reach: Reach, sites: Sites, optimizers: Sequence[Entity], models: set[Value]
    ) -> None:
        self.objects = objects
        self.reach = reach
        self.solved: Solved = objects.solved
        self.index: Index = objects.index
        self.optimizers = tuple(optimizers)
        self.by_value = {each.value: each for each in optimizers}
        self.blocks = {site.block: site for site in sites.scale_loss if isinstance(site.block, cst.With)}
        self._calls = {site.call: site for site in sites.scale_loss if not isinstance(site.block, cst.With)}
        half = next((init.half for init in sites.initialize if init.half is not None), HalfUses())
        self._clips, self._idle = {*half.clips}, {*half.idle}
        #: uses of an optimizer that a native rewrite can't follow: (optimizer, problem)
        self.problems: list[tuple[Entity | None, CannotFollow]] = []
        self._scale_reads = {use.node for use in sites.scales if isinstance(use, ScaleRead)}
        self.at: dict[cst.CSTNode, list[Happening]] = {}
        self.plain_backwards: list[Happening] = []
        self._models = models
        self._inside = {each for model in self._models for each in reach.inside(model)}
        for node in self.index.nodes:
            found = [] if self._is_in_optimizer(node) else self._happenings(node)
            if found:
                self.at[node] = found

    def optimizer(self, node: cst.BaseExpression) -> Entity | None:
        """Return the optimizer that ``node`` stands for, if it's one of ours and can be no other object."""
        values = self.objects.values(node)
        if len(values) == 1:
            return self.by_value.get(next(iter(values)))
        return None

    def site_of(self, node: cst.CSTNode, name: str) -> ScaleLoss | None:
        """Return the block around ``node`` whose scaled loss is called ``name``."""
        for outer in self.index.ancestors(node):
            site = self.blocks.get(outer) if isinstance(outer, cst.With) else None
            if site is not None and site.alias == name:
                return site
        return None

    def _is_in_optimizer(self, node: cst.CSTNode) -> bool:
        """Return whether ``node`` is code of an optimizer of this file: what it does with gradients is its step."""
        if not isinstance(node, (cst.Call, cst.Attribute)):
            return False
        owner = self.index.class_of(self.index.function(node))
        return owner is not None and self.solved.own_optimizers.is_one(owner)

    # -- one node ------------------------------------------------------------------------------------------------

    def _happenings(self, node: cst.CSTNode) -> list[Happening]:
        if node in self._scale_reads:
            return [Happening(Event.SCALE_READ, node)]
        if isinstance(node, cst.Call) and not _reads_grad_by_name(node):
            found = self._call(node)
            made = self.by_value.get(self.objects.leader(Made(node)))
            if made is not None and Made(node) in self.solved.of(node):
                found = [*found, Happening(Event.NEW, node, (made,))]
            return found
        if isinstance(node, cst.Call) and _reads_grad_by_name(node):
            return [Happening(Event.TOUCH, node)]
        if isinstance(node, cst.Attribute) and node.attr.value in ("grad", "main_grad"):
            return self._gradient(node)
        return []

    def _call(self, call: cst.Call) -> list[Happening]:
        values = self.solved.of(call.func)
        for value in values:
            if isinstance(value, Partial) and value.call.args:
                values = values | self.solved.of(value.call.args[0].value)
        if any(isinstance(value, FunctionValue) for value in values) or self._runs_own_code(call):
            return []
        paths = {f"apex.{v.path}" if isinstance(v, Apex) else v.path for v in values if isinstance(v, (Apex, Imported))}
        if paths & _GRADIENT_FUNCTIONS:
            return [Happening(Event.TOUCH, call, self._touched(call))]
        if any(path.startswith("torch.autograd.backward") for path in paths):
            self.problems.append((None, CannotFollow("`torch.autograd.backward` can't be scaled", call, 10)))
            return []
        if paths:
            return self._library(call, paths)
        if isinstance(call.func, cst.Attribute):
            return self._method(call, call.func)
        return self._unknown(call, call.func.value if isinstance(call.func, cst.Name) else "")

    def _runs_own_code(self, call: cst.Call) -> bool:
        return any(True for _ in self.solved.functions_of(call))

    def _library(self, call: cst.Call, paths: set[str]) -> list[Happening]:
        if all(path.startswith(("torch.", "apex.")) or path == "torch" for path in paths):
            return []
        return self._unknown(call, paths.copy().pop().rpartition(".")[2])

    def _method(self, call: cst.Call, func: cst.Attribute) -> list[Happening]:
        name = func.attr.value
        optimizer = self.optimizer(func.value)
        if name == "backward":
            return self._backward(call, func)
        if optimizer is not None:
            return self._optimizer_method(call, name, optimizer)
        if name == "zero_grad":
            return self._model_zero_grad(call, func)
        if name == "step" and (self._may_step(func.value) or self._is_unknown_step(call, func)):
            self._wrapped_step(call, func)
            return []
        if self._is_model(func.value):
            if any(word in name for word in ("grad", "clip")) and name != "requires_grad_":
                return [Happening(Event.TOUCH, call)]
            return []
        return self._unknown(call, name)

    def _backward(self, call: cst.Call, func: cst.Attribute) -> list[Happening]:
        called = self._calls.get(call)
        if called is not None:
            return [Happening(Event.SCALED_BACKWARD, call, called.entities, called)]
        receiver = reduced(func.value)
        if isinstance(receiver, cst.Name):
            site = self.site_of(call, receiver.value)
            if site is not None:
                return [Happening(Event.SCALED_BACKWARD, call, site.entities, site)]
        if self.optimizer(func.value) is not None:
            self.problems.append((self.optimizer(func.value), CannotFollow("`optimizer.backward` isn't amp's", call)))
            return []
        if self._is_scaled_elsewhere(func.value):
            return []
        happening = Happening(Event.PLAIN_BACKWARD, call)
        self.plain_backwards.append(happening)
        return [happening]

    def _is_scaled_elsewhere(self, receiver: cst.BaseExpression) -> bool:
        """``scaler.scale(loss).backward()`` in code that has native AMP already."""
        return (
            isinstance(receiver, cst.Call)
            and isinstance(receiver.func, cst.Attribute)
            and receiver.func.attr.value == "scale"
        )

    def _optimizer_method(self, call: cst.Call, name: str, optimizer: Entity) -> list[Happening]:
        if name == "step":
            if call.args:
                problem = CannotFollow(f"`{optimizer.name}.step` gets a closure, which GradScaler refuses", call, 8)
                self.problems.append((optimizer, problem))
            return [Happening(Event.STEP, call, (optimizer,))]
        if name == "zero_grad":
            return [Happening(_clearing(call), call, (optimizer,))]
        if call in self._clips:
            return [Happening(Event.TOUCH, call, (optimizer,))]
        if name in _OPTIMIZER_METHODS or call in self._idle or any(site.call is call for site in self.blocks.values()):
            return []
        problem = CannotFollow(f"what `{optimizer.name}.{name}` does to gradients isn't known", call, 8)
        self.problems.append((optimizer, problem))
        return []

    def _model_zero_grad(self, call: cst.Call, func: cst.Attribute) -> list[Happening]:
        models = self.objects.values(func.value)
        covered = tuple(each for each in self.optimizers if self.reach.is_covered(each, models))
        return [Happening(_clearing(call), call, covered)] if covered else []

    def _may_step(self, receiver: cst.BaseExpression) -> bool:
        """Return whether ``receiver.step()`` may step one of the optimizers from inside another object."""
        calls = [v.call for v in self.solved.of(receiver) if isinstance(v, Made)]
        for call in calls:
            name = _last_name(call.func).lower()
            if any(word in name for word in _CALLBACK_STEPS):
                continue
            if any(self.optimizer(arg.value) is not None for arg in call.args):
                return True
        return len(self.objects.values(receiver) & set(self.by_value)) > 0

    def _is_unknown_step(self, call: cst.Call, func: cst.Attribute) -> bool:
        """``getattr(holder, "optimizer").step()``: by its name it is no schedule, and it takes nothing."""
        name = _last_name(func.value).lower()
        if call.args or any(word in name for word in _CALLBACK_STEPS):
            return False
        values = self.solved.of(func.value)
        makers = [value.call for value in values if isinstance(value, Made)]
        if any(any(word in _last_name(each.func).lower() for word in _CALLBACK_STEPS) for each in makers):
            return False
        known = [v for each in makers for v in self.solved.of(each.func) if isinstance(v, (Imported, Apex))]
        return not known or not values

    def _wrapped_step(self, call: cst.Call, func: cst.Attribute) -> None:
        inner = [
            self.optimizer(arg.value)
            for value in self.solved.of(func.value)
            if isinstance(value, Made)
            for arg in value.call.args
        ]
        name = _last_name(func.value)
        problem = CannotFollow(f"`{name}.step` steps an optimizer from inside another object", call, 8)
        owners: list[Entity | None] = [found for found in inner if found is not None]
        for each in owners or [None]:
            self.problems.append((each, problem))

    def _unknown(self, call: cst.Call, name: str) -> list[Happening]:
        """A function that can't be followed and gets an optimizer, a model or parameters may look at gradients.

        By their names, imported functions and methods may be harmless; what is called through a variable never is.
        """
        lowered = name.lower()
        if isinstance(call.func, cst.Call) and any(self._is_known(value) for value in self.solved.of(call.func)):
            return []  # nn.Softmax(dim=-1)(scores)
        known = any(self._is_known(value) for value in self.solved.of(call.func))
        is_variable = isinstance(call.func, cst.Name) and not known and name not in BUILTINS
        looks_at_gradients = "grad" in lowered or "clip" in lowered or "norm" in lowered or is_variable or not name
        gives_parameters = any(self.reach.mentions_parameters(arg.value) for arg in call.args)
        looks_at_gradients = looks_at_gradients or gives_parameters
        if not looks_at_gradients and set(re.findall("[a-z]+", lowered)) & _HARMLESS:
            return []
        if isinstance(call.func, cst.Name) and (name in BUILTINS or name[:1].isupper()):
            return []
        if self.objects.values(call.func) & self._inside:  # a layer of the model
            return []
        if any(self._gives_access(arg.value, looks_at_gradients) for arg in call.args):
            return [Happening(Event.TOUCH, call)]
        return []

    def _gives_access(self, argument: cst.BaseExpression, looks_at_gradients: bool) -> bool:
        """Return whether an argument leads to the parameters of one of our optimizers."""
        ours = set(self.by_value) | self._models
        for value in self.solved.of(argument):
            if isinstance(value, OBJECTS) and self.objects.leader(value) in ours:
                return True
            if isinstance(value, Instance) and self.reach.inside(value) & ours:
                return True
        is_output = isinstance(argument, cst.Call) and not self.reach.mentions_parameters(argument)
        return looks_at_gradients and not is_output and bool(self.reach.models_in(argument) & self._inside)

    def _is_known(self, value: Value) -> bool:
        """Return whether ``value`` is imported, or a module of torch."""
        if isinstance(value, Made):
            made = self.solved.of(value.call.func)
            return any(isinstance(each, Imported) and each.path.startswith("torch.nn.") for each in made)
        return isinstance(value, (Apex, Imported))

    def _is_model(self, receiver: cst.BaseExpression) -> bool:
        return bool(self.objects.values(receiver) & self._models)

    # -- gradients -----------------------------------------------------------------------------------------------

    def _gradient(self, node: cst.Attribute) -> list[Happening]:
        if any(isinstance(value, (Imported, Apex)) for value in self.solved.of(node.value)):
            return []
        return [Happening(Event.TOUCH, node, self._around(node))]

    def _touched(self, call: cst.Call) -> tuple[Entity, ...] | None:
        first = call_argument(call, 0, "parameters")
        return None if first is None else self.owners(first)

    def _around(self, node: cst.CSTNode) -> tuple[Entity, ...] | None:
        """Return the optimizers whose parameters a loop around ``node`` goes over."""
        for outer in self.index.ancestors(node):
            if isinstance(outer, (cst.For, cst.CompFor)):
                return self.owners(outer.iter)
            if isinstance(outer, cst.BaseComp):
                return self.owners(outer.for_in.iter)
            if isinstance(outer, cst.FunctionDef):
                break
        return None

    def owners(self, parameters: cst.BaseExpression) -> tuple[Entity, ...] | None:
        """Return the optimizers that may own any of ``parameters``; None if it may be any."""
        for each in self.index.walk(parameters):
            if isinstance(each, cst.Call) and self._is_master_params(each) and each.args:
                owner = self.optimizer(each.args[0].value)
                return None if owner is None else (owner,)
        direct = [self.optimizer(e.value) for e in self.index.walk(parameters) if isinstance(e, cst.Attribute)]
        named = tuple(each for each in direct if each is not None)
        if named:
            return named
        models = self.reach.models_in(parameters)
        if not models:
            return None
        inside: set[Value] = set()
        for model in models:
            inside |= self.reach.inside(model)
        found = []
        for optimizer in self.optimizers:
            mine = self.reach.models_of(optimizer)
            if not mine or mine & inside or any(self.reach.inside(m) & models for m in mine):
                found.append(optimizer)
        return tuple(found) or None

    def _is_master_params(self, call: cst.Call) -> bool:
        return any(isinstance(v, Apex) and v.path.endswith("master_params") for v in self.solved.of(call.func))


def reduced(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return ``loss`` of ``loss.mean()`` and ``loss.sum()``: what DataParallel gathers has a loss for each GPU."""
    while isinstance(node, cst.Call) and not node.args and isinstance(node.func, cst.Attribute):
        if node.func.attr.value not in ("mean", "sum"):
            break
        node = node.func.value
    return node


def _reads_grad_by_name(call: cst.Call) -> bool:
    """``getattr(p, "grad")``"""
    is_getattr = isinstance(call.func, cst.Name) and call.func.value in ("getattr", "setattr") and len(call.args) > 1
    name = call.args[1].value if is_getattr else None
    return isinstance(name, cst.SimpleString) and name.evaluated_value == "grad"


def _clearing(call: cst.Call) -> Event:
    kept = call_argument(call, 0, "set_to_none")
    return Event.ZERO if isinstance(kept, cst.Name) and kept.value == "False" else Event.CLEAR


def _last_name(node: cst.CSTNode) -> str:
    if isinstance(node, cst.Call):
        return _last_name(node.func)
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""
