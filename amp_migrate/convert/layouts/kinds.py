"""What a container is, told by what it holds: an optimizer's state, a model's weights, an object of some class."""

from __future__ import annotations

from typing import Any, Iterator

from ..records import PickledObject, Tensor
from ..values import FLOATS
from .editing import Spot, Tree


def is_optimizer_state(value: Any) -> bool:
    """Whether this is a ``torch.optim.Optimizer.state_dict()``, of whatever class."""
    if not isinstance(value, dict) or not isinstance(value.get("state"), dict):
        return False
    groups = value.get("param_groups")
    return isinstance(groups, list) and all(isinstance(g, dict) and isinstance(g.get("params"), list) for g in groups)


def is_weights(value: Any) -> bool:
    """Whether this dict names floating tensors, as a model's ``state_dict()`` does."""
    return isinstance(value, dict) and any(isinstance(k, str) and is_float(v) for k, v in value.items())


def is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in FLOATS


def is_module(value: Any) -> bool:
    """Whether this is a pickled ``nn.Module``, of whatever class: their state always has these."""
    return isinstance(value, PickledObject) and {"_parameters", "_buffers", "_modules"} <= set(value.attributes)


def is_optimizer_object(value: Any) -> bool:
    """Whether this is a pickled ``torch.optim.Optimizer``, of whatever class."""
    return isinstance(value, PickledObject) and {"state", "param_groups"} <= set(value.attributes)


def models_in(tree: Tree) -> Iterator[Spot]:
    """Yield the model states of a tree: what names weights and isn't part of an optimizer's or scaler's state."""
    for spot in tree.spots:
        if is_weights(spot.node) and not any(_is_about_training(above.node) for above in spot.ancestors):
            yield spot


def _is_about_training(node: Any) -> bool:
    return isinstance(node, dict) and ("param_groups" in node or "optimizer_state_dict" in node)
