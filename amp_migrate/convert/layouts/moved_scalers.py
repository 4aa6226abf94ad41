"""Frameworks that keep a GradScaler's state under another key than they kept Apex's: the state moves.

They load one scaler. Of several, one moves (the first, or that of option ``scaler``); the others stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from .. import scaler
from .editing import Spot, renamed, without
from .kinds import is_optimizer_state
from .layout import Layout, Work, each_dict

_LIGHTNING = "MixedPrecision"
_LIGHTNING_FSDP = "FSDPPrecision"
#: key that some Lightning wrote → key that today's reads
_LIGHTNING_KEYS: Mapping[str, str] = {
    "amp_scaling_state": _LIGHTNING,
    "native_amp_scaling_state": _LIGHTNING,
    "ApexMixedPrecisionPlugin": _LIGHTNING,
    "NativeMixedPrecisionPlugin": _LIGHTNING,
    "MixedPrecisionPlugin": _LIGHTNING,
    "ShardedNativeMixedPrecisionPlugin": _LIGHTNING,
    "FullyShardedNativeMixedPrecisionPlugin": _LIGHTNING_FSDP,
    "FullyShardedNativeNativeMixedPrecisionPlugin": _LIGHTNING_FSDP,
    "FSDPMixedPrecisionPlugin": _LIGHTNING_FSDP,
}
_LIGHTNING_VERSION = "pytorch-lightning_version"
#: Lightning's keys for Apex: until 1.5, and in 1.6 to 1.9
_LIGHTNING_APEX = ("amp_scaling_state", "ApexMixedPrecisionPlugin")


@dataclass(frozen=True)
class _Move:
    """Apex's key and GradScaler's in a dict."""

    apex: str
    native: str


_TIMM = _Move("amp", "amp_scaler")
_MMENGINE = _Move("apex_amp", "loss_scaler")


def _is_timm(node: Mapping[Any, Any]) -> bool:
    """timm/utils/checkpoint_saver.py: no other script has all of these."""
    return {"epoch", "arch", "state_dict", "optimizer", "version"} <= set(node)


def _move_in(node: Any) -> _Move | None:
    if _is_timm(node):
        return _TIMM
    if is_optimizer_state(node) and ({_MMENGINE.apex, _MMENGINE.native} & set(node)):
        return _MMENGINE
    return None


def _is_scaler(value: Any) -> bool:
    return scaler.is_native(value) or scaler.is_several_native(value)


def _moved(spot: Spot, work: Work) -> Any:
    move = _move_in(spot.node)
    if move is None or not _is_scaler(spot.node.get(move.apex)):
        return None
    return _to_key(spot.node, move.apex, move.native, spot.place, work)


def _of_lightning(spot: Spot, work: Work) -> Any:
    node = spot.node
    for old, new in _LIGHTNING_KEYS.items():
        if _is_scaler(node.get(old)) or (node.get(old) == {} and _LIGHTNING_VERSION in node):
            node = _to_key(node, old, new, spot.place, work)
    return None if node is spot.node else node


def _to_key(node: dict[Any, Any], old: str, new: str, place: str, work: Work) -> dict[Any, Any]:
    """Move a scaler's state from one key to another, unless something is there already."""
    if new in node:
        work.kept(place, f"{new!r} is there already; {old!r} stays beside it")
        return node
    state = node[old]
    if not scaler.is_several_native(state):
        work.changed(place, f"the scaler's state moves from {old!r} to {new!r}")
        return renamed(node, {old: new})
    first = next(iter(state))
    moved = renamed(node, {old: new})
    moved[new] = state[first]
    kept_as = f"{new}_others"
    moved[kept_as] = without(state, first)
    work.changed(place, f"{first} moves from {old!r} to {new!r}")
    work.kept(place, f"{len(state) - 1} more scalers are under {kept_as!r}: one is loaded; choose it with scaler=N")
    return moved


def _back(spot: Spot, work: Work) -> Any:
    """GradScaler's key back to Apex's, for who converts back."""
    node, move = spot.node, _move_in(spot.node)
    if move is None and _LIGHTNING_VERSION in node:
        version = str(node[_LIGHTNING_VERSION])
        move = _Move(_LIGHTNING_APEX[version.startswith(("1.6", "1.7", "1.8", "1.9"))], _LIGHTNING)
    if move is None or not scaler.is_amp_state(node.get(move.native)) or move.apex in node:
        return None
    work.changed(spot.place, f"the scaler's state moves from {move.native!r} to {move.apex!r}")
    return renamed(node, {move.native: move.apex})


LIGHTNING = Layout(
    name="Lightning's scaler state",
    writer="PyTorch Lightning 0.9 to today",
    years="2020-08 to today",
    source="lightning/pytorch/utilities/migration/migration.py; .../plugins/precision/amp.py (state_dict)",
    convert=each_dict(_of_lightning),
)
MOVED = Layout(
    name="scaler state under a key of its own",
    writer="timm (amp, amp_scaler), mmengine (apex_amp, loss_scaler)",
    years="2020 to today",
    source="timm/utils/checkpoint_saver.py; mmengine/optim/optimizer/{apex_optimizer_wrapper,amp_optimizer_wrapper}.py",
    convert=each_dict(_moved),
)
MOVED_BACK = Layout(
    name="scaler state under a key of its own",
    writer="timm, mmengine, PyTorch Lightning",
    years="2020 to today",
    source="the same files",
    convert=each_dict(_back),
)
