"""Settings that trainers keep beside the state: which backend, and whether amp was on."""

from __future__ import annotations

from typing import Any

from ..records import PickledObject
from .editing import Edits, Spot, Tree, with_items
from .layout import Layout, Work, each_dict

_LEVELS = {"O0": False, "O1": True, "O2": True, "O3": True}
#: attributes of transformers' TrainingArguments that chose Apex
_BACKENDS = ("half_precision_backend", "fp16_backend")


def _trainer_state(spot: Spot, work: Work) -> Any:
    """FARM took an opt level as ``use_amp``; Haystack's is a bool."""
    node = spot.node
    state = node.get("trainer_state")
    if not isinstance(state, dict) or "model_state" not in node or state.get("use_amp") not in _LEVELS:
        return None
    if not isinstance(state["use_amp"], str):
        return None
    level = state["use_amp"]
    work.changed(f"{spot.place}.trainer_state".lstrip("."), f"use_amp={level!r} is {_LEVELS[level]}")
    return with_items(node, trainer_state=with_items(state, use_amp=_LEVELS[level]))


def _training_arguments(tree: Tree, work: Work) -> Edits:
    """transformers' ``training_args.bin``: plain attributes, without the choice of Apex."""
    edits: Edits = {}
    for spot in tree.spots:
        node = spot.node
        if not isinstance(node, PickledObject) or not node.cls.name.endswith("TrainingArguments"):
            continue
        values = {key: _enum_value(value) for key, value in node.attributes.items()}
        for key in _BACKENDS:
            if values.get(key) == "apex":
                values[key] = "auto"
                work.changed(spot.place, f"{key}='apex' is 'auto'")
        level = values.get("fp16_opt_level")
        if values.get("fp16") and level in ("O2", "O3"):
            work.lost(spot.place, f"fp16_opt_level={level}: the model's weights beside it are rounded to half")
        work.changed(spot.place, f"{node.cls} isn't built: a dict of its attributes takes its place")
        edits[id(node)] = values
    return edits


def _enum_value(value: Any) -> Any:
    """``IntervalStrategy("steps")`` is pickled as its class and value; the value is what transformers compares."""
    enum = isinstance(value, PickledObject) and value.cls.module.startswith("transformers.")
    plain = enum and len(value.args) == 1 and isinstance(value.args[0], (str, int)) and not value.state
    return value.args[0] if plain else value


TRAINER_STATE = Layout(
    name="trainer state with an opt level",
    writer="FARM, Haystack 1.x",
    years="2020 to 2023",
    source="haystack/modeling/training/base.py (_get_state_dict)",
    convert=each_dict(_trainer_state),
)
TRAINING_ARGUMENTS = Layout(
    name="TrainingArguments",
    writer="transformers (training_args.bin)",
    years="2019 to today",
    source="transformers/training_args.py; transformers/trainer.py (_save)",
    convert=_training_arguments,
)
