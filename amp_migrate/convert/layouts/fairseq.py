"""fairseq's FP16Optimizer: a loss scale in the optimizer's state, and one flat entry for all parameters."""

from __future__ import annotations

import copy
from typing import Any, Sequence

from ..records import Tensor
from ..scaler import FACTORS
from ..values import number
from .editing import Spot, with_items
from .kinds import is_float, is_optimizer_state, is_weights
from .layout import Layout, Work, each_dict

_STATE = "last_optimizer_state"
_SCALE = "loss_scale"
#: keys of a model's state that are buffers in any fairseq model
_BUFFERS = ("running_mean", "running_var", "version", "_float_tensor")


def _convert(spot: Spot, work: Work) -> Any:
    node = spot.node
    state = node.get(_STATE)
    if not is_optimizer_state(state) or "optimizer_history" not in node or _SCALE not in state:
        return None
    place = f"{spot.place}.{_STATE}".lstrip(".")
    new = _split(node, state, place, work)
    if new is None and "scaler" in node:
        return None  # converted before
    result = with_items(node, **{_STATE: new}) if new is not None else copy.copy(node)
    _say_names(node, spot.place, work)
    if "scaler" not in node:
        scale = float(number(state[_SCALE]))
        result["scaler"] = {"scale": scale, **FACTORS, "_growth_tracker": 0}
        work.changed(spot.place, f"the loss scale {scale:g} is a GradScaler's state under 'scaler'")
        work.assumed(spot.place, "growth_interval=2000, and no steps since the last overflow: fairseq saves neither")
    return result


def _say_names(node: dict[Any, Any], place: str, work: Work) -> None:
    history = node["optimizer_history"]
    names = sorted({str(one.get("optimizer_name")) for one in history if isinstance(one, dict)})
    if any("FP16" in name for name in names):
        work.lost(
            f"{place}.optimizer_history".lstrip("."),
            f"{', '.join(names)} hides which optimizer was inside; the keys of its state tell, or the training's args",
        )


def _split(node: dict[Any, Any], state: dict[str, Any], place: str, work: Work) -> Any:
    """The state with an entry per parameter, if it is flat and the model's shapes fill it exactly."""
    groups = state["param_groups"]
    if len(groups) != 1 or len(groups[0]["params"]) != 1 or len(state["state"]) != 1:
        return None
    ((key, entry),) = state["state"].items()
    flats = {name: value for name, value in entry.items() if isinstance(value, Tensor) and value.numel > 1}
    model: Any = node.get("model")
    if not flats or not is_weights(model) or any(len(flat.shape) != 1 for flat in flats.values()):
        return None
    (size, *others) = {flat.numel for flat in flats.values()}
    shapes = None if others else _shapes(model, size, work.options.names_for(place))
    if shapes is None:
        work.lost(place, f"{size} elements in one tensor, which the model's parameters don't fill: it stays flat")
        return None
    if len(shapes) == 1 and len(shapes[0]) == 1:
        return None  # a model of one vector is flat by itself
    work.changed(place, f"the flat state is cut into {len(shapes)} parameters, in the model's order")
    entries = {index: dict(entry) for index in range(len(shapes))}
    for name, flat in flats.items():
        start = 0
        for index, shape in enumerate(shapes):
            entries[index][name] = flat.part(start, shape)
            start += entries[index][name].numel
    group = with_items(groups[0], params=list(range(len(shapes))))
    return with_items(state, state=entries, param_groups=[group])


def _shapes(model: dict[str, Any], size: int, names: Sequence[str] | None) -> list[tuple[int, ...]] | None:
    """Shapes of the parameters, each once though it may have several names; None if they don't add up to ``size``."""
    if names is not None:
        return _adding_up([model[name] for name in names if is_float(model.get(name))], size)
    floats = {key: value for key, value in model.items() if is_float(value)}
    trained = [value for key, value in floats.items() if not key.endswith(_BUFFERS)]
    return _adding_up(list(floats.values()), size) or _adding_up(trained, size)


def _adding_up(tensors: list[Tensor], size: int) -> list[tuple[int, ...]] | None:
    distinct = {(id(t.storage), t.offset, t.shape): t for t in tensors}
    shapes = [tensor.shape for tensor in distinct.values()]
    return shapes if sum(tensor.numel for tensor in distinct.values()) == size else None


FAIRSEQ = Layout(
    name="last_optimizer_state with a loss scale",
    writer="fairseq (FP16Optimizer)",
    years="2018 to today",
    source="fairseq/optim/fp16_optimizer.py (state_dict, build_fp32_params); fairseq/checkpoint_utils.py",
    convert=each_dict(_convert),
)
