"""``'master params'``: a list of all float32 masters beside an O2 model, in the order of the optimizer's groups."""

from __future__ import annotations

from typing import Any

from ..errors import CannotConvert
from ..records import Tensor
from ..values import HALVES
from .editing import Edits, Spot, Tree, without
from .fp16_optimizer import place_masters, say_order
from .kinds import is_optimizer_state, models_in
from .layout import Layout, Work
from .masters import Masters, Matching, by_names, weights_of

_KEYS = ("master params", "master_params")


def _convert(tree: Tree, work: Work) -> Edits:
    edits: Edits = {}
    for spot in tree.spots:
        key = _key_of(spot)
        if key is not None:
            _into_model(spot, key, tree, edits, work)
    return edits


def _key_of(spot: Spot) -> str | None:
    """The key of the masters in a dict. Without an optimizer's state beside them their order means nothing."""
    node = spot.node
    if not isinstance(node, dict) or not any(is_optimizer_state(value) for value in node.values()):
        return None
    return next((key for key in _KEYS if _are_tensors(node.get(key))), None)


def _are_tensors(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(one, Tensor) for one in value)


def _into_model(spot: Spot, key: str, tree: Tree, edits: Edits, work: Work) -> None:
    place = f"{spot.place}[{key!r}]"
    models = [one for one in models_in(tree) if one.parent is not None and one.parent.node is spot.node]
    if not models:
        work.kept(place, "no model is beside the masters")
        return
    groups = _grouped(list(spot.node[key]), spot, place)
    masters = Masters(place, groups, tuple(id(model.node) for model in models))
    weights = weights_of((model.node for model in models), only_half=False)
    matching = Matching(weights)
    names = work.options.names_for(place)
    if names is None:
        pairs = matching.match([masters])
        say_order(matching, work)
    else:
        pairs = list(zip(by_names(masters, names, weights, matching.values), (master for _, master in masters)))
    # frozen parameters have no master, and before the first step none has: amp lists the half ones, which add nothing
    place_masters([pair for pair in pairs if pair[1].dtype not in HALVES], models, edits, work)
    edits[id(spot.node)] = without(spot.node, key)
    work.changed(place, "what the masters hold is in the model's state now, and this list is gone")


def _grouped(masters: list[Tensor], spot: Spot, place: str) -> list[list[Tensor]]:
    """The masters by group of the optimizer whose number of parameters they have.

    Raises:
        CannotConvert: if no optimizer has that many.
    """
    counts = []
    for value in spot.node.values():
        if is_optimizer_state(value):
            sizes = [len(group["params"]) for group in value["param_groups"]]
            counts.append(sum(sizes))
            if sum(sizes) == len(masters):
                ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
                return [masters[end - size : end] for size, end in zip(sizes, ends)]
    raise CannotConvert(f"{place} has {len(masters)} masters, but the optimizer beside it has {counts} parameters")


MASTER_PARAMS = Layout(
    name="'master params'",
    writer="NVIDIA DeepLearningExamples BERT (bae6e931 to a9e2c1d5)",
    years="2019-08 to 2022-03",
    source="DeepLearningExamples PyTorch/LanguageModeling/BERT/run_pretraining.py",
    convert=_convert,
)
