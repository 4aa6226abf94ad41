"""The calls of Apex's amp in a file, as facts: initialize, scale_loss, master_params, state_dict and the rest."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import libcst as cst

from .half_sites import HalfUses, find_half_uses
from .handle_sites import Handles, find_handles
from .index import Index
from .known_calls import HANDLE
from .loss_scales import ScaleRead, ScaleWrite, read_use
from .objects import Entity, Objects
from .problem import CannotFollow
from .signatures import call_argument, has_star, keyword_argument
from .solve import Solved
from .states import Gradients
from .values import Apex, Value

#: the ways to one function: where Apex itself has it besides ``apex.amp``
_NAMES = {
    "amp.init": "init",
    "amp.amp.init": "init",
    "amp.initialize": "initialize",
    "amp.frontend.initialize": "initialize",
    "amp.scale_loss": "scale_loss",
    f"{HANDLE}.scale_loss": "handle_scale_loss",
    "amp.handle.scale_loss": "scale_loss",
    "amp.master_params": "master_params",
    "amp._amp_state.master_params": "master_params",
    "amp.state_dict": "state_dict",
    "amp.frontend.state_dict": "state_dict",
    "amp.load_state_dict": "load_state_dict",
    "amp.frontend.load_state_dict": "load_state_dict",
}


#: a wrapped optimizer keeps the gradients of its other losses aside
_NOT_SCALED = frozenset({Gradients.PLAIN, Gradients.UNKNOWN})
_NOTHING_BEFORE = _NOT_SCALED | {Gradients.SCALED}


@dataclass(frozen=True)
class Initialize:
    """A call of ``amp.initialize``, or of ``amp.init`` or ``FP16_Optimizer``, which get no models."""

    call: cst.Call
    statement: cst.CSTNode
    function: cst.FunctionDef | None
    models: cst.BaseExpression | None
    optimizers: cst.BaseExpression | None
    entities: tuple[Entity, ...]
    handles: Handles | None = None
    half: HalfUses | None = None

    @property
    def model_expressions(self) -> list[cst.BaseExpression]:
        """The models, one by one."""
        if self.models is None:
            return []
        if isinstance(self.models, (cst.List, cst.Tuple)):
            return [element.value for element in self.models.elements]
        return [self.models]


@dataclass(frozen=True)
class ScaleLoss:
    """A ``with amp.scale_loss(loss, optimizer) as scaled:``.

    ``optimizer.backward(loss)`` of FP16_Optimizer is one as well; its block is its line, and it has no alias.
    ``refuses`` are gradients that mustn't be there before: a block of a handle unscales them once more.
    """

    call: cst.Call
    block: cst.With | cst.SimpleStatementLine
    function: cst.FunctionDef | None
    loss: cst.BaseExpression
    optimizers: cst.BaseExpression
    entities: tuple[Entity, ...]
    loss_id: int | None
    delay: cst.BaseExpression | None
    alias: str
    refuses: frozenset[Gradients] = frozenset()


@dataclass(frozen=True)
class OtherCall:
    """``master_params``, ``state_dict`` or ``load_state_dict``."""

    name: str
    call: cst.Call
    function: cst.FunctionDef | None
    entity: Entity | None = None


@dataclass
class Sites:
    """All of a file. ``problems`` are calls whose facts can't be read; ``others`` uses of amp that no loop explains."""

    initialize: list[Initialize] = field(default_factory=list)
    scale_loss: list[ScaleLoss] = field(default_factory=list)
    calls: list[OtherCall] = field(default_factory=list)
    scales: list[ScaleRead | ScaleWrite] = field(default_factory=list)
    problems: list[CannotFollow] = field(default_factory=list)
    others: list[tuple[cst.CSTNode, str]] = field(default_factory=list)
    #: the expressions ``amp.initialize`` … that are explained by the sites above
    explained: set[cst.CSTNode] = field(default_factory=set)


def find_sites(index: Index, solved: Solved, objects: Objects) -> Sites:
    """Return every use of Apex's amp in the file."""
    sites = Sites()
    handles = find_handles(index, solved, objects, sites.problems)
    for node in index.nodes:
        if isinstance(node, cst.Subscript):
            _read_scale(node, index, solved, sites)
        if not isinstance(node, cst.Call):
            continue
        paths = {v.path for v in solved.of(node.func) if isinstance(v, Apex)}
        names = {_NAMES[path] for path in paths if path in _NAMES}
        if not names and handles.wrapped and _is_wrapped_scale_loss(node, handles, objects):
            names = {"wrapped_scale_loss"}
        if len(names) != 1:
            continue
        sites.explained.add(node.func)
        try:
            _read(names.pop(), node, index, objects, sites, handles)
        except CannotFollow as problem:
            sites.problems.append(problem)
    _read_half(index, solved, objects, sites)
    of_handles = {each.value: each for block in sites.scale_loss if block.refuses for each in block.entities}
    sites.initialize = [
        each if each.handles is None else replace(each, entities=tuple(of_handles.values()))
        for each in sites.initialize
    ]
    return sites


def _read_half(index: Index, solved: Solved, objects: Objects, sites: Sites) -> None:
    """Read the loops of FP16_Optimizer."""
    uses = find_half_uses(index, solved, objects, sites.problems)
    if uses is None:
        return
    try:
        for call in uses.wrapped:
            sites.explained.add(call.func)
            sites.initialize.append(_half_optimizer(call, uses, index, objects))
        ours = {each.value for init in sites.initialize if init.half for each in init.entities}
        for node in index.nodes:
            func = node.func if isinstance(node, cst.Call) else None
            is_backward = isinstance(func, cst.Attribute) and func.attr.value == "backward"
            if isinstance(node, cst.Call) and is_backward and objects.values(func.value) & ours:  # type: ignore[union-attr]
                sites.scale_loss.append(_half_backward(node, index, objects))
        _read_half_scales(ours, index, objects, sites)
    except CannotFollow as problem:
        sites.problems.append(problem)
    sites.explained.update(call.func for call in uses.halves)


def _read_half_scales(ours: set[Value], index: Index, objects: Objects, sites: Sites) -> None:
    """``optimizer.loss_scale`` of FP16_Optimizer is read, or set."""
    for node in index.nodes:
        if not isinstance(node, cst.Attribute) or node.attr.value not in ("loss_scale", "cur_scale"):
            continue
        if not objects.values(node.value) & ours:
            continue
        if isinstance(index.parent.get(node), (cst.AssignTarget, cst.AugAssign)):
            raise CannotFollow("the program sets the loss scale of FP16_Optimizer", node, 6)
        sites.scales.append(ScaleRead(node, index.function(node), 0))


def _half_optimizer(call: cst.Call, uses: HalfUses, index: Index, objects: Objects) -> Initialize:
    inner = call_argument(call, 0, "init_optimizer")
    line = index.statement(call)
    if inner is None or has_star(call) or not isinstance(line, cst.Assign) or line.value is not call:
        raise CannotFollow("what `FP16_Optimizer` wraps, or what becomes of it, can't be followed", call)
    entities = (objects.one(inner),)
    return Initialize(call, line, index.function(call), None, inner, entities, half=uses)


def _half_backward(call: cst.Call, index: Index, objects: Objects) -> ScaleLoss:
    assert isinstance(call.func, cst.Attribute)
    line = index.line(index.statement(call))
    loss = call_argument(call, 0, "loss")
    if loss is None or has_star(call) or not isinstance(line, cst.SimpleStatementLine):
        raise CannotFollow("`optimizer.backward` gets no loss, or stands in another statement", call)
    optimizer = call.func.value
    entities = (objects.one(optimizer),)
    return ScaleLoss(call, line, index.function(call), loss, optimizer, entities, 0, None, "")


def _is_wrapped_scale_loss(call: cst.Call, handles: Handles, objects: Objects) -> bool:
    func = call.func
    is_named = isinstance(func, cst.Attribute) and func.attr.value == "scale_loss"
    return is_named and handles.owner(objects.values(func.value)) is not None  # type: ignore[attr-defined]


def _read(name: str, call: cst.Call, index: Index, objects: Objects, sites: Sites, handles: Handles) -> None:
    if name == "initialize":
        sites.initialize.append(_initialize(call, index, objects))
    elif name == "init":
        sites.initialize.append(_init(call, index, handles))
    elif name.endswith("scale_loss"):
        read = {"scale_loss": _scale_loss, "handle_scale_loss": _handle_scale_loss}.get(name)
        block = read(call, index, objects) if read else _wrapped_scale_loss(call, index, objects, handles)
        sites.scale_loss.append(block)
    else:
        entity = None
        if name == "master_params":
            optimizer = call_argument(call, 0, "optimizer")
            if optimizer is None:
                raise CannotFollow("which optimizer's parameters are meant can't be seen", call)
            entity = objects.one(optimizer)
        sites.calls.append(OtherCall(name, call, index.function(call), entity))


def _read_scale(node: cst.Subscript, index: Index, solved: Solved, sites: Sites) -> None:
    try:
        use = read_use(node, index, solved)
    except CannotFollow as problem:
        sites.problems.append(problem)
        sites.explained.add(node)
        return
    if use is not None:
        sites.scales.append(use)
        sites.explained.add(node)


def _initialize(call: cst.Call, index: Index, objects: Objects) -> Initialize:
    if has_star(call):
        raise CannotFollow("`amp.initialize` gets arguments by * or **, which can't be seen", call)
    models = call_argument(call, 0, "models")
    if models is None:
        raise CannotFollow("`amp.initialize` has no model", call)
    optimizers = call_argument(call, 1, "optimizers")
    if isinstance(optimizers, cst.Name) and optimizers.value == "None":
        optimizers = None
    entities = () if optimizers is None else tuple(objects.all(optimizers))
    return Initialize(call, index.statement(call), index.function(call), models, optimizers, entities)


def _init(call: cst.Call, index: Index, handles: Handles) -> Initialize:
    if has_star(call):
        raise CannotFollow("`amp.init` gets arguments by * or **, which can't be seen", call)
    line = index.statement(call)
    if not isinstance(line, (cst.Assign, cst.Expr)) or line.value is not call:
        raise CannotFollow("what becomes of the handle of `amp.init` can't be followed", call)
    return Initialize(call, line, index.function(call), None, None, (), handles)


def _block_of(call: cst.Call, index: Index) -> tuple[cst.With, str]:
    """Return the ``with`` statement that ``call`` opens, and the name of the scaled loss in it."""
    item = index.parent[call]
    block = index.parent.get(item)
    if not isinstance(item, cst.WithItem) or not isinstance(block, cst.With):
        raise CannotFollow("`amp.scale_loss` isn't used in a `with` statement", call)
    if len(block.items) != 1 or block.asynchronous is not None:
        raise CannotFollow("the `with` of `amp.scale_loss` has other items", call)
    if has_star(call):
        raise CannotFollow("`amp.scale_loss` gets arguments by * or **, which can't be seen", call)
    if item.asname is None or not isinstance(item.asname.name, cst.Name):
        raise CannotFollow("the scaled loss has no name", call)
    return block, item.asname.name.value


def _scale_loss(call: cst.Call, index: Index, objects: Objects) -> ScaleLoss:
    block, alias = _block_of(call, index)
    loss = call_argument(call, 0, "loss")
    optimizers = call_argument(call, 1, "optimizers")
    if loss is None or optimizers is None:
        raise CannotFollow("`amp.scale_loss` has no loss or no optimizer", call)
    for place, keyword in ((3, "model"), (5, "delay_overflow_check")):
        if call_argument(call, place, keyword) is not None:
            raise CannotFollow(f"`amp.scale_loss` has `{keyword}=`, which native AMP lacks", call)
    entities = tuple(objects.all(optimizers))
    loss_id = _loss_id(call_argument(call, 2, "loss_id"))
    delay = call_argument(call, 4, "delay_unscale")
    if isinstance(delay, cst.Name) and delay.value == "False":
        delay = None
    return ScaleLoss(call, block, index.function(call), loss, optimizers, entities, loss_id, delay, alias)


def _handle_scale_loss(call: cst.Call, index: Index, objects: Objects) -> ScaleLoss:
    block, alias = _block_of(call, index)
    loss, optimizer = call_argument(call, 0, "loss"), call_argument(call, 1, "optimizer")
    if loss is None or optimizer is None:
        raise CannotFollow("`scale_loss` of the handle has no loss or no optimizer", call)
    entities = (objects.one(optimizer),)
    return ScaleLoss(call, block, index.function(call), loss, optimizer, entities, 0, None, alias, _NOTHING_BEFORE)


def _wrapped_scale_loss(call: cst.Call, index: Index, objects: Objects, handles: Handles) -> ScaleLoss:
    block, alias = _block_of(call, index)
    loss = call_argument(call, 0, "loss")
    assert isinstance(call.func, cst.Attribute)
    optimizer = call.func.value
    entity = objects.one(optimizer)
    wrapped = handles.owner({entity.value})
    if loss is None or wrapped is None:
        raise CannotFollow("`scale_loss` of a wrapped optimizer has no loss", call)
    loss_id = wrapped.loss_id
    return ScaleLoss(call, block, index.function(call), loss, optimizer, (entity,), loss_id, None, alias, _NOT_SCALED)


def _loss_id(node: cst.BaseExpression | None) -> int | None:
    """Return the number of the loss scaler; None if it's computed."""
    if node is None:
        return 0
    return int(node.value, 0) if isinstance(node, cst.Integer) else None


def initialize_keyword(site: Initialize, keyword: str) -> cst.BaseExpression | None:
    """Return a keyword of ``amp.initialize``; ``None`` where it isn't given, or given as None.

    Positions as in Apex's frontend.py (models, optimizers, enabled, opt_level, cast_model_type, …) and amp.py (enabled,
    loss_scale, …).
    """
    if site.half is not None:
        return None
    places = {"enabled": 2, "opt_level": 3} if site.handles is None else {"enabled": 0, "loss_scale": 1}
    place = places.get(keyword)
    found = keyword_argument(site.call, keyword) if place is None else call_argument(site.call, place, keyword)
    return None if isinstance(found, cst.Name) and found.value == "None" else found
