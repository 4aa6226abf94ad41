"""The calls of Apex's amp in a file, as facts: initialize, scale_loss, master_params, state_dict and the rest."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from ..tree import walk
from .index import Index
from .loss_scales import ScaleRead, ScaleWrite, read_use
from .objects import Entity, Objects
from .problem import CannotFollow
from .signatures import call_argument, has_star, keyword_argument
from .solve import Solved
from .values import Apex

#: the ways to one function: where Apex itself has it besides ``apex.amp``
_NAMES = {
    "amp.initialize": "initialize",
    "amp.frontend.initialize": "initialize",
    "amp.scale_loss": "scale_loss",
    "amp.handle.scale_loss": "scale_loss",
    "amp.master_params": "master_params",
    "amp._amp_state.master_params": "master_params",
    "amp.state_dict": "state_dict",
    "amp.frontend.state_dict": "state_dict",
    "amp.load_state_dict": "load_state_dict",
    "amp.frontend.load_state_dict": "load_state_dict",
}


@dataclass(frozen=True)
class Initialize:
    """A call of ``amp.initialize``."""

    call: cst.Call
    statement: cst.CSTNode
    function: cst.FunctionDef | None
    models: cst.BaseExpression
    optimizers: cst.BaseExpression | None
    entities: tuple[Entity, ...]


@dataclass(frozen=True)
class ScaleLoss:
    """A ``with amp.scale_loss(loss, optimizer) as scaled:``."""

    call: cst.Call
    block: cst.With
    function: cst.FunctionDef | None
    loss: cst.BaseExpression
    entities: tuple[Entity, ...]
    loss_id: int | None
    delay: cst.BaseExpression | None
    alias: str


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
    for node in walk(index.module):
        if isinstance(node, cst.Subscript):
            _read_scale(node, index, solved, sites)
        if not isinstance(node, cst.Call):
            continue
        paths = {v.path for v in solved.of(node.func) if isinstance(v, Apex)}
        names = {_NAMES[path] for path in paths if path in _NAMES}
        if len(names) != 1:
            continue
        sites.explained.add(node.func)
        try:
            _read(names.pop(), node, index, objects, sites)
        except CannotFollow as problem:
            sites.problems.append(problem)
    return sites


def _read(name: str, call: cst.Call, index: Index, objects: Objects, sites: Sites) -> None:
    if name == "initialize":
        sites.initialize.append(_initialize(call, index, objects))
    elif name == "scale_loss":
        sites.scale_loss.append(_scale_loss(call, index, objects))
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


def _scale_loss(call: cst.Call, index: Index, objects: Objects) -> ScaleLoss:
    item = index.parent[call]
    block = index.parent.get(item)
    if not isinstance(item, cst.WithItem) or not isinstance(block, cst.With):
        raise CannotFollow("`amp.scale_loss` isn't used in a `with` statement", call)
    if len(block.items) != 1 or block.asynchronous is not None:
        raise CannotFollow("the `with` of `amp.scale_loss` has other items", call)
    if has_star(call):
        raise CannotFollow("`amp.scale_loss` gets arguments by * or **, which can't be seen", call)
    loss = call_argument(call, 0, "loss")
    optimizers = call_argument(call, 1, "optimizers")
    if loss is None or optimizers is None:
        raise CannotFollow("`amp.scale_loss` has no loss or no optimizer", call)
    if item.asname is None or not isinstance(item.asname.name, cst.Name):
        raise CannotFollow("the scaled loss has no name", call)
    for place, keyword in ((3, "model"), (5, "delay_overflow_check")):
        if call_argument(call, place, keyword) is not None:
            raise CannotFollow(f"`amp.scale_loss` has `{keyword}=`, which native AMP lacks", call)
    entities = tuple(objects.all(optimizers))
    loss_id = _loss_id(call_argument(call, 2, "loss_id"))
    delay = call_argument(call, 4, "delay_unscale")
    if isinstance(delay, cst.Name) and delay.value == "False":
        delay = None
    alias = item.asname.name.value
    return ScaleLoss(call, block, index.function(call), loss, entities, loss_id, delay, alias)


def _loss_id(node: cst.BaseExpression | None) -> int | None:
    """Return the number of the loss scaler; None if it's computed."""
    if node is None:
        return 0
    return int(node.value, 0) if isinstance(node, cst.Integer) else None


def initialize_keyword(site: Initialize, keyword: str) -> cst.BaseExpression | None:
    """Return a keyword of ``amp.initialize``; ``None`` where it isn't given, or given as None.

    Positions as in Apex's frontend.py: models, optimizers, enabled, opt_level, cast_model_type, …
    """
    place = {"enabled": 2, "opt_level": 3}.get(keyword)
    found = keyword_argument(site.call, keyword) if place is None else call_argument(site.call, place, keyword)
    return None if isinstance(found, cst.Name) and found.value == "None" else found
