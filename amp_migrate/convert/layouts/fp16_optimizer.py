"""FP16_Optimizer: the optimizer's state, float32 masters and the loss scaler in one dict, beside a half model.

It comes apart: the inner optimizer's state takes its place, the masters become the model's weights, the scaler's state
lands beside it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from .. import scaler
from ..errors import CannotConvert
from ..records import Tensor
from .editing import Edits, Spot, Tree, with_items
from .kinds import is_optimizer_state, models_in
from .layout import Layout, Work
from .masters import Masters, Matching, Weight, by_names, cut, weights_of
from .scalers import said

#: where the masters are: a list per group; or one flat tensor per group
_LISTS = ("fp32_from_fp16", "fp32_groups", "fp32_from_fp16_params")
_FLAT = "fp32_groups_flat"
#: where the state of the optimizer inside is
_INNER = ("optimizer_state_dict", "optimizer")
#: what belongs to the wrapper, and means nothing without it
_WRAPPERS_OWN = frozenset(
    {
        *_LISTS,
        _FLAT,
        *_INNER,
        "loss_scaler",
        "grad_scaler",
        "dynamic_loss_scale",
        "overflow",
        "first_closure_call_this_step",
        "cur_scale",
        "cur_iter",
        "last_overflow_iter",
        "scale_factor",
        "scale_window",
    }
)
#: names that a note has
_SHOWN = 6
_MASTERS_KEY = "master params"


@dataclass(frozen=True, eq=False)
class _Wrapper:
    """One FP16_Optimizer's state."""

    spot: Spot
    inner_key: str
    masters_key: str

    @property
    def inner(self) -> dict[str, Any]:
        inner: dict[str, Any] = self.spot.node[self.inner_key]
        return inner

    @property
    def place(self) -> str:
        return self.spot.place

    @property
    def groups(self) -> list[Any]:
        groups: list[Any] = self.spot.node[self.masters_key]
        return groups


def _wrapper(spot: Spot) -> _Wrapper | None:
    node = spot.node
    if not isinstance(node, dict):
        return None
    inner = next((key for key in _INNER if is_optimizer_state(node.get(key))), None)
    masters = next((key for key in (*_LISTS, _FLAT) if isinstance(node.get(key), (list, tuple))), None)
    return _Wrapper(spot, inner, masters) if inner and masters else None


def _convert(tree: Tree, work: Work) -> Edits:
    wrappers = [wrapper for spot in tree.spots if (wrapper := _wrapper(spot)) is not None]
    if not wrappers:
        return {}
    models = [spot for spot in models_in(tree) if not any(_inside(spot, wrapper) for wrapper in wrappers)]
    matching = Matching(weights_of((spot.node for spot in models), only_half=True))
    edits: Edits = {}
    inner, masters = _unwrapped(wrappers, matching, models, work)
    edits.update(inner)
    if models:
        _into_models(masters, matching, models, edits, work)
    _beside(wrappers, masters if not models else [], edits, work)
    return edits


def _inside(spot: Spot, wrapper: _Wrapper) -> bool:
    return any(above.node is wrapper.spot.node for above in (spot, *spot.ancestors))


def _nearest(wrapper: _Wrapper, models: list[Spot]) -> tuple[int, ...]:
    """Ids of the model states: first those that lie in the same containers; of equals an EMA copy is last."""
    around = {id(above.node) for above in wrapper.spot.ancestors}
    in_common = {id(spot): sum(id(above.node) in around for above in spot.ancestors) for spot in models}
    ordered = sorted(models, key=lambda spot: (-in_common[id(spot)], "ema" in spot.place.lower()))
    return tuple(id(spot.node) for spot in ordered)


def _unwrapped(
    wrappers: list[_Wrapper], matching: Matching, models: list[Spot], work: Work
) -> tuple[Edits, list[Masters]]:
    """What takes the wrappers' places, and the masters that were in them, one tensor per parameter."""
    edits: Edits = {}
    masters = []
    for wrapper in wrappers:
        if wrapper.masters_key == _FLAT:
            groups = _cut_groups(wrapper, matching, bool(models), work)
            inner = _cut_state(wrapper, groups)
            work.changed(wrapper.place, f"flat masters and state are cut into {sum(map(len, groups))} parameters")
        else:
            groups, inner = [list(group) for group in wrapper.groups], copy.copy(wrapper.inner)
        rest = {key: value for key, value in wrapper.spot.node.items() if key not in _WRAPPERS_OWN}
        inner.update(rest)
        masters.append(Masters(wrapper.place or "the file", groups, _nearest(wrapper, models)))
        edits[id(wrapper.spot.node)] = inner
        work.changed(wrapper.place, "the state of the optimizer inside FP16_Optimizer takes its place")
    return edits, masters


def _cut_groups(wrapper: _Wrapper, matching: Matching, has_models: bool, work: Work) -> list[list[Tensor]]:
    if not has_models:
        raise CannotConvert(
            f"{wrapper.place or 'the file'} has flat masters, and only the model's weights tell where one ends: "
            "convert a file that has the model's state beside it"
        )
    names = work.options.names_for(wrapper.place)
    if names is not None:
        return _cut_by_names(wrapper, names, matching)
    used: set[int] = set()
    return [cut(flat, f"{wrapper.place}, group {index}", matching, used) for index, flat in enumerate(wrapper.groups)]


def _cut_by_names(wrapper: _Wrapper, names: Any, matching: Matching) -> list[list[Tensor]]:
    named: dict[str, Weight] = {key: weight for weight in matching.weights for _, key in weight.places}
    waiting = [named[name] for name in names if name in named]
    groups = []
    for index, flat in enumerate(wrapper.groups):
        parts, start = [], 0
        while start < flat.numel and waiting:
            weight = waiting.pop(0)
            parts.append(flat.part(start, weight.tensor.shape))
            start += weight.tensor.numel
        if start != flat.numel:
            raise CannotConvert(
                f"{wrapper.place}, group {index}: its flat masters have {flat.numel} elements, the names in "
                f"param_order {start}"
            )
        groups.append(parts)
    return groups


def _cut_state(wrapper: _Wrapper, groups: list[list[Tensor]]) -> dict[str, Any]:
    """The inner state with an entry per parameter, from one per group (apex/optimizers/fp16_optimizer.py, 475fca23)."""
    inner = wrapper.inner
    state: dict[Any, Any] = {}
    new_groups, first = [], 0
    for index, (group, flat, parts) in enumerate(zip(inner["param_groups"], wrapper.groups, groups)):
        numbers = list(range(first, first + len(parts)))
        first += len(parts)
        new_groups.append(with_items(group, params=numbers))
        (old,) = group["params"] if len(group["params"]) == 1 else (None,)
        entry = inner["state"].get(old)
        for number, part in zip(numbers, parts):
            if entry is not None:
                state[number] = {
                    key: _slice(value, flat, part, f"{wrapper.place}, group {index}") for key, value in entry.items()
                }
    return with_items(inner, state=state, param_groups=new_groups)


def _slice(value: Any, flat: Tensor, part: Tensor, group: str) -> Any:
    """What of a flat tensor of the state belongs to one master; numbers belong to all."""
    if not isinstance(value, Tensor) or value.numel == 1 != flat.numel:
        return value
    if value.numel != flat.numel:
        raise CannotConvert(f"{group}: its flat state has {value.numel} elements, its flat masters {flat.numel}")
    return value.part(part.offset - flat.offset, part.shape)


def _into_models(masters: list[Masters], matching: Matching, models: list[Spot], edits: Edits, work: Work) -> None:
    pairs: list[tuple[Weight, Tensor]] = []
    searched = []
    for one in masters:
        names = work.options.names_for(one.place)
        if names is None:
            searched.append(one)
        else:
            weights = by_names(one, names, matching.weights, matching.values)
            pairs.extend(zip(weights, (master for _, master in one)))
    pairs.extend(matching.match(searched))
    say_order(matching, work)
    place_masters(pairs, models, edits, work)


def say_order(matching: Matching, work: Work) -> None:
    """Note which masters were told apart by their order only."""
    if matching.by_order:
        names = ", ".join(matching.by_order[:_SHOWN])
        more = f" and {len(matching.by_order) - _SHOWN} more" if len(matching.by_order) > _SHOWN else ""
        work.assumed(
            "", f"the optimizer has {names}{more} in the model's order, as its others: as halves they are equal"
        )


def place_masters(pairs: list[tuple[Weight, Tensor]], models: list[Spot], edits: Edits, work: Work) -> None:
    """Put masters into the model states in which their weights are; edits are added to ``edits``."""
    new: dict[int, dict[Any, Any]] = {}
    for weight, master in pairs:
        plain = master.detached()
        for model, key in weight.places:
            new.setdefault(id(model), copy.copy(model))[key] = plain
    for spot in models:
        if id(spot.node) in new:
            count = sum(1 for key, value in new[id(spot.node)].items() if value is not spot.node[key])
            work.changed(spot.place, f"{count} weights are the float32 masters now")
    edits.update(new)


def _beside(wrappers: list[_Wrapper], masters: list[Masters], edits: Edits, work: Work) -> None:
    """Put the scalers' states, and masters that no model takes, into the dicts around the wrappers."""
    by_home: dict[int, list[tuple[int, Spot]]] = {}
    homes: dict[int, Spot] = {}
    for index, wrapper in enumerate(wrappers):
        home = next((above for above in wrapper.spot.ancestors if isinstance(above.node, dict)), wrapper.spot)
        homes[id(home.node)] = home
        by_home.setdefault(id(home.node), []).append((index, wrapper.spot))
    for key, home in homes.items():
        found = []
        for _, spot in by_home[key]:
            state = scaler.found_in(spot.node)
            found.append(None if state is None else said(spot.place, state, work))
        inside = home.node is by_home[key][0][1].node
        target = edits[key] if inside else copy.copy(edits.get(key, home.node))
        _add_scalers(target, found, [spot for _, spot in by_home[key]], home.place, work)
        if masters:
            _add(target, _MASTERS_KEY, [master for i, _ in by_home[key] for _, master in masters[i]])
            work.kept(
                home.place, f"no model is in the file: the masters are under {_MASTERS_KEY!r}, in optimizer order"
            )
        edits[key] = target


def _add_scalers(target: dict[Any, Any], found: list[Any], spots: list[Spot], place: str, work: Work) -> None:
    known = [state for state in found if state is not None]
    if not known:
        return
    if len(found) == 1:
        key = _add(target, "scaler", known[0])
        work.changed(place, f"the scaler's state is under {key!r}")
    elif all(spot.parent is not None and isinstance(spot.parent.node, list) for spot in spots):
        key = _add(target, "scalers", found)
        work.changed(place, f"the scalers' states are under {key!r}, in the order of the optimizers")
    else:
        for spot, state in zip(spots, found):
            if state is not None:
                key = _add(target, f"{spot.key}_scaler", state)
                work.changed(place, f"the scaler's state is under {key!r}")


def _add(target: dict[Any, Any], key: str, value: Any) -> str:
    """Add a value under a key that is free; return the key."""
    name, number = key, 1
    while name in target:
        number += 1
        name = f"{key}{number}"
    target[name] = value
    return name


FP16_OPTIMIZER = Layout(
    name="FP16_Optimizer.state_dict()",
    writer="apex.fp16_utils, apex.optimizers and apex.contrib.optimizers, DeepSpeed, Megatron-LM",
    years="2018 to today",
    source="apex/fp16_utils/fp16_optimizer.py; apex/contrib/optimizers/fp16_optimizer.py; Megatron-LM b84d7a9012",
    convert=_convert,
)
