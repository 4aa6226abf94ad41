"""Optimizers that were pickled as objects: refused with an explanation; their state if the file is trusted."""

from __future__ import annotations

from itertools import chain
from typing import Any

from ..errors import Unsafe
from ..records import PickledObject
from .editing import Edits, Spot, Tree, with_items
from .kinds import is_optimizer_object
from .layout import Layout, Work


def _convert(tree: Tree, work: Work) -> Edits:
    edits: Edits = {}
    for spot in tree.spots:
        if not is_optimizer_object(spot.node):
            continue
        if not work.options.trust:
            raise Unsafe(
                f"{spot.place or 'the file'} is a pickled optimizer object ({spot.node.cls}), not its state_dict(). "
                "Its parameters are copies that no model uses. Use --trust to take its state out, --drop-unknown to "
                "leave it out, or save optimizer.state_dict() where it was trained."
            )
        edits[id(spot.node)] = _state(spot, work)
    return edits


def _refusable(tree: Tree, work: Work) -> Edits:
    return {} if work.options.drop_unknown and not work.options.trust else _convert(tree, work)


def _state(spot: Spot, work: Work) -> dict[str, Any]:
    """What ``Optimizer.state_dict`` would return (torch/optim/optimizer.py): parameters are numbers."""
    node: PickledObject = spot.node
    groups = node.attributes["param_groups"]
    params = {id(param): index for index, param in enumerate(chain.from_iterable(g["params"] for g in groups))}
    state = {params.get(id(key), key): value for key, value in node.attributes["state"].items()}
    work.changed(spot.place, f"the state of a pickled {node.cls} takes its place")
    numbered = [with_items(group, params=[params[id(param)] for param in group["params"]]) for group in groups]
    return {"state": state, "param_groups": numbered}


OPTIMIZER_OBJECT = Layout(
    name="pickled optimizer",
    writer="torch.save(optimizer)",
    years="2016 to today",
    source="torch/optim/optimizer.py (__getstate__)",
    convert=_refusable,
)
