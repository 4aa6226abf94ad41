"""A model's weights: prefixes of their names, and what their values say about the opt level."""

from __future__ import annotations

import copy
from typing import Any, Iterable

from ..errors import CannotConvert
from ..values import HALVES, only_halves
from .editing import Edits, Spot, Tree, renamed
from .kinds import is_float, is_weights, models_in
from .layout import Layout, Work
from .scalers import AMP_STATE

#: elements per tensor that are looked at before saying that a model looks half-rounded
_SAMPLE = 64
_FEW = 8


def _strip(tree: Tree, work: Work) -> Edits:
    prefix = work.options.strip_prefix
    if not prefix:
        return {}
    edits: Edits = {}
    for spot in models_in(tree):
        if all(isinstance(key, str) and key.startswith(prefix) for key in spot.node):
            names = {key: key[len(prefix) :] for key in spot.node}
            if "" in names.values():
                raise CannotConvert(f"{spot.place} has a key that is nothing but the prefix {prefix!r}")
            edits[id(spot.node)] = _without_prefix(renamed(spot.node, names), prefix)
            work.changed(spot.place, f"{len(names)} keys without {prefix!r}")
        elif any(str(key).startswith(prefix) for key in spot.node):
            others = sum(not str(key).startswith(prefix) for key in spot.node)
            work.kept(spot.place, f"{prefix!r} stays: {others} of {len(spot.node)} keys don't begin with it")
    return edits


def _without_prefix(state: dict[Any, Any], prefix: str) -> dict[Any, Any]:
    """``_metadata`` names modules: ``module.`` alone is ``""``."""
    metadata = getattr(state, "_metadata", None)
    if isinstance(metadata, dict):
        new = copy.copy(metadata)
        new.clear()
        for key, value in metadata.items():
            inside = isinstance(key, str) and (key + ".").startswith(prefix)
            new[key[len(prefix) :] if inside else key] = value
        state._metadata = new  # type: ignore[attr-defined]
    return state


def looks_rounded(state: dict[Any, Any], sample: int | None = None) -> bool:
    """Whether all float32 weights of a model are numbers of float16, as those that O2 and O3 saved.

    Args:
        state: a model's state dict, of recorded tensors.
        sample: look at this many elements per tensor only; None: at all.

    BatchNorm stays in float32 at O2, so vectors that have running statistics beside them aren't looked at.
    """
    values = [value for key, value in state.items() if is_float(value) and not _of_batchnorm(key, state)]
    numbers = sum(value.numel for value in values)
    full = [value for value in values if value.dtype == "float32" and value.numel]
    return numbers >= _FEW and len(full) == len(values) and all(only_halves(value, sample) for value in full)


def opt_level(states: Iterable[dict[Any, Any]]) -> str:
    """Which opt level the weights betray: "O2 or O3", "O0 or O1", or "half" for weights that are float16 themselves."""
    found = [state for state in states if is_weights(state)]
    if any(value.dtype in HALVES for state in found for value in state.values() if is_float(value)):
        return "half"
    return "O2 or O3" if any(looks_rounded(state) for state in found) else "O0 or O1"


def _of_batchnorm(key: Any, state: dict[Any, Any]) -> bool:
    module = str(key).rpartition(".")[0]
    return f"{module}.running_mean".lstrip(".") in state


def _say_level(tree: Tree, work: Work) -> Edits:
    """O2's masters are in no file; nothing changes, but whoever resumes should know."""
    if AMP_STATE.name not in work.report.layouts:
        return {}
    for spot in models_in(tree):
        if _is_model(spot) and looks_rounded(spot.node, _SAMPLE):
            work.lost(
                spot.place,
                "the weights are rounded to half, as O2 and O3 saved them; their float32 masters are not in "
                "the file. Load them into a float32 model",
            )
    return {}


def _is_model(spot: Spot) -> bool:
    return all(isinstance(key, str) for key in spot.node)


PREFIX = Layout(
    name="names with a prefix",
    writer="DistributedDataParallel, DataParallel (module.), apex.fp16_utils (1., network.)",
    years="2017 to today",
    source="torch/nn/parallel/distributed.py; apex/fp16_utils/fp16util.py",
    convert=_strip,
)
ROUNDED = Layout(
    name="half-rounded weights",
    writer="apex.amp at O2 and O3",
    years="2019-08 to 2025-05",
    source="apex/amp/_initialize.py (O2StateDictHook)",
    convert=_say_level,
)
