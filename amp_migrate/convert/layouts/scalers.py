"""Loss scalers by themselves: ``amp.state_dict()``, states and objects of the scalers before it, GradScaler's."""

from __future__ import annotations

from typing import Any

from .. import scaler
from ..errors import CannotConvert
from ..records import PickledObject
from ..scaler import Found
from .editing import Edits, Spot, Tree
from .layout import Layout, Work, each_dict


def _amp_states(tree: Tree, work: Work) -> Edits:
    _check_key(tree, work.options.key)
    return each_dict(_amp_state)(tree, work)


def _check_key(tree: Tree, key: str | None) -> None:
    """Refuse a name that no scaler and no amp state of the file has."""
    spots = [spot for spot in tree.spots if isinstance(spot.node, dict) and _is_any_scaler(spot.node)]
    if key is not None and spots and not any(key in spot.node or key in (spot.place, spot.key) for spot in spots):
        names = sorted({str(name) for spot in spots for name in (spot.place, *_numbered_keys(spot.node)) if name})
        raise CannotConvert(f"no loss scaler or amp state is called {key!r}; there are {names}. Choose one of these.")


def _is_any_scaler(node: dict[Any, Any]) -> bool:
    return scaler.is_amp_state(node) or scaler.is_several_native(node) or scaler.is_native(node)


def _numbered_keys(node: dict[Any, Any]) -> list[Any]:
    return [] if scaler.is_native(node) else list(node)


def _amp_state(spot: Spot, work: Work) -> Any:
    """One scaler takes the place of its state; of several, each keeps its key."""
    if not scaler.is_amp_state(spot.node):
        return _chosen_again(spot, work)
    options = work.options
    states = {str(key): scaler.from_amp(str(key), value) for key, value in spot.node.items()}
    states = {
        key: _as_told(scaler.per_update(state, options.accumulation_steps), work) for key, state in states.items()
    }
    chosen = _choice(spot, work)
    _say(spot.place, {key: state for key, state in states.items() if chosen in (None, key)}, work)
    if chosen is None:
        return states if len(states) > 1 else next(iter(states.values()))
    return _one(spot.place, states, chosen, work)


def _chosen_again(spot: Spot, work: Work) -> Any:
    if scaler.is_several_native(spot.node) and (chosen := _choice(spot, work)) is not None:
        return _one(spot.place, spot.node, chosen, work)
    return None


def _choice(spot: Spot, work: Work) -> str | None:
    """Name of the one scaler that is to be taken from the state at ``spot``."""
    key, index = work.options.key, work.options.scaler
    if key is not None and key in spot.node:
        return key
    if index is None or key not in (None, spot.place, spot.key):
        return None
    return f"loss_scaler{index}"


def _one(place: str, states: dict[str, Any], name: str, work: Work) -> Any:
    if name not in states:
        raise CannotConvert(f"{place or 'the file'} has no {name}; it has {sorted(states)}. Choose one of these.")
    for other in states:
        if other != name:
            work.lost(place, f"{other}: another scaler was asked for")
    return states[name]


def _as_told(state: dict[str, Any], work: Work) -> dict[str, Any]:
    return {**state, "growth_interval": scaler.NEVER} if work.options.static_scale else state


def _say(place: str, states: dict[str, Any], work: Work) -> None:
    for name, state in states.items():
        scale, count = state["scale"], state["_growth_tracker"]
        work.changed(place, f"{name} is a GradScaler's state: scale {scale:g}, {count} steps without overflow")
    if work.options.static_scale:
        work.changed(place, _static("it"))
    else:
        work.assumed(place, "the loss scale was dynamic; for a fixed one say so (static_scale)")
    work.lost(place, "min_loss_scale and max_loss_scale: Apex doesn't save them, GradScaler has none")
    if len(states) > 1:
        work.kept(place, f"{len(states)} scalers, each under its key; one GradScaler takes one of them (scaler=N)")


def _static(what: str) -> str:
    return f"{what} was a fixed scale: it never grows, but halves on an overflow; `scaler.update(new_scale)` sets it"


def said(place: str, found: Found, work: Work) -> dict[str, Any]:
    """The state that was found, after noting what it leaves out."""
    work.changed(place, f"the loss scaler is a GradScaler's state: scale {found.state['scale']:g}")
    for what in found.lost:
        work.lost(place, what)
    for what in found.assumed:
        work.assumed(place, what)
    if found.dynamic is False:
        work.lost(
            place,
            f"static: the scale {found.state['scale']:g} was fixed, and a GradScaler changes its own; keep "
            "it with `scaler.update(new_scale)` after each step",
        )
        return _as_told(found.state, work)
    return found.state


def _older(tree: Tree, work: Work) -> Edits:
    """Scaler objects, and dicts that count iterations, wherever they stand by themselves."""
    edits: Edits = {}
    for spot in tree.spots:
        node = spot.node
        if isinstance(node, PickledObject) and "scaler" not in node.cls.name.lower():
            continue
        if isinstance(node, dict) and "cur_scale" not in node and "hysteresis_tracker" not in node:
            continue
        if isinstance(node, (dict, PickledObject)) and (found := scaler.found_in(node)) is not None:
            edits[id(node)] = said(spot.place, found, work)
    return edits


def _to_apex(spot: Spot, work: Work) -> Any:
    if scaler.is_several_native(spot.node):
        states = {key: scaler.from_native(value) for key, value in spot.node.items()}
    elif scaler.is_native(spot.node) and not _is_numbered(spot):
        states = {"loss_scaler0": scaler.from_native(spot.node)}
    else:
        return None
    work.changed(spot.place, f"{len(states)} GradScaler state(s) in amp's layout")
    return states


def _is_numbered(spot: Spot) -> bool:
    return spot.parent is not None and scaler.is_several_native(spot.parent.node)


AMP_STATE = Layout(
    name="amp.state_dict()",
    writer="apex.amp, and every script and framework that saved it under a key of its own",
    years="2019-08 to 2025-05",
    source="apex/amp/frontend.py; apex/amp/scaler.py",
    convert=_amp_states,
)
OLDER_SCALERS = Layout(
    name="loss scaler objects and states that count iterations",
    writer="apex.fp16_utils, mmcv 1.x (meta.fp16.loss_scaler), DeepSpeed, Megatron-LM",
    years="2018 to today",
    source="apex/fp16_utils/loss_scaler.py; mmcv/runner/fp16_utils.py (LossScaler.state_dict)",
    convert=_older,
)
GRAD_SCALER = Layout(
    name="GradScaler.state_dict()",
    writer="torch.cuda.amp, torch.amp",
    years="2020-07 to today",
    source="torch/amp/grad_scaler.py",
    convert=each_dict(_to_apex),
)
