"""Optimizer states: Apex's fused optimizers for torch's classes, torch's Adam for FusedAdam, ids as keys.

Which class wrote a state isn't in it; the keys of its groups and of its parameters' entries tell.
"""

from __future__ import annotations

import copy
import struct
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Any, Callable, Dict, Mapping

from ..errors import CannotConvert
from ..records import Inline, Storage, Tensor
from ..values import is_zero, number
from .editing import Spot, renamed, with_items, without
from .kinds import is_optimizer_state
from .layout import Layout, Work, each_dict

State = Dict[str, Any]


class Family(Enum):
    """Who wrote an optimizer's state. The value is the name of the class."""

    FUSED_ADAM = "FusedAdam"
    OLD_FUSED_ADAM = "FusedAdam of before 2019-08"
    FUSED_ADAGRAD = "FusedAdagrad"
    FUSED_LAMB = "FusedLAMB"
    FUSED_NOVOGRAD = "FusedNovoGrad"
    ADAM = "Adam"
    ADAGRAD = "Adagrad"
    SGD = "SGD"
    OTHER = "an optimizer unknown here"


@dataclass(frozen=True)
class _Mark:
    """A family has all of ``groups`` among its groups' keys, none of ``never``, and entries within ``entries``."""

    family: Family
    groups: frozenset[str]
    never: frozenset[str] = frozenset()
    entries: frozenset[str] | None = None


_MOMENTS = frozenset({"step", "exp_avg", "exp_avg_sq"})
#: keys of timm's Lamb (timm/optim/lamb.py) and DeepSpeed's FusedLamb (deepspeed/ops/lamb/fused_lamb.py)
_OTHER_LAMBS = frozenset({"trust_clip", "always_adapt", "max_coeff", "min_coeff"})
#: what FusedAdagrad's groups have, and a scheduler adds; no other optimizer has so little
_ADAGRAD_GROUP = frozenset({"params", "lr", "eps", "weight_decay", "initial_lr"})
#: the first that fits; sources: ``defaults`` and ``step`` of apex/optimizers/*.py, torch/optim/*.py
_MARKS = (
    _Mark(Family.FUSED_NOVOGRAD, frozenset({"norm_type", "grad_averaging", "init_zero"})),
    _Mark(Family.FUSED_LAMB, frozenset({"grad_averaging", "max_grad_norm", "bias_correction"}), _OTHER_LAMBS),
    _Mark(Family.OLD_FUSED_ADAM, frozenset({"bias_correction", "max_grad_norm", "betas"}), _OTHER_LAMBS, _MOMENTS),
    _Mark(Family.FUSED_ADAM, frozenset({"bias_correction", "betas", "eps"}), _OTHER_LAMBS, _MOMENTS),
    _Mark(Family.ADAM, frozenset({"amsgrad", "betas", "eps"})),
    _Mark(Family.ADAGRAD, frozenset({"lr_decay", "initial_accumulator_value"})),
    _Mark(
        Family.FUSED_ADAGRAD,
        frozenset({"lr", "eps", "weight_decay"}),
        frozenset({"betas", "momentum", "alpha", "rho", "lambd", "etas"}),
        frozenset({"sum"}),
    ),
    _Mark(Family.SGD, frozenset({"momentum", "dampening", "nesterov"})),
)


def family_of(state: State) -> Family:
    """Tell who wrote an optimizer's state."""
    groups = set(chain.from_iterable(state["param_groups"]))
    entries = set(chain.from_iterable(entry for entry in state["state"].values() if isinstance(entry, dict)))
    for mark in _MARKS:
        if mark.groups <= groups and not mark.never & groups and (mark.entries is None or entries <= mark.entries):
            untold = mark.family is Family.FUSED_ADAGRAD and not entries and not groups <= _ADAGRAD_GROUP
            return Family.OTHER if untold else mark.family
    return Family.OTHER


def step_tensor(step: float) -> Tensor:
    """A ``step`` as torch's optimizers keep it since 1.12: a scalar of its own, float32, on the CPU."""
    return Tensor(Storage("float32", 1, "cpu", Inline(struct.pack("<f", step))), 0, (), ())


def with_numbered_keys(state: State) -> State | None:
    """The state with parameters counted from 0 instead of named by ``id(param)``; None if they are counted already.

    Source: torch/optim/optimizer.py until 1.5 (``state_dict`` packed ``id``s); the order of the groups is the order of
    the parameters.
    """
    ids = list(chain.from_iterable(group["params"] for group in state["param_groups"]))
    if not all(type(one) is int for one in ids) or set(ids) <= set(range(len(ids))):
        return None
    numbers = {one: index for index, one in enumerate(dict.fromkeys(ids))}
    groups = [with_items(g, params=[numbers[one] for one in g["params"]]) for g in state["param_groups"]]
    return with_items(state, state=renamed(state["state"], numbers), param_groups=groups)


def adam_from_fused(state: State, place: str, work: Work) -> State:
    """FusedAdam's state for Adam and AdamW: steps move from the groups to the parameters.

    Raises:
        CannotConvert: if a group has moments but no step.
    """
    entries: State = copy.copy(state["state"])
    moved = False
    for index, group in enumerate(state["param_groups"]):
        waiting = [one for one in group["params"] if "exp_avg" in entries.get(one, {}) and "step" not in entries[one]]
        if waiting and "step" not in group:
            raise CannotConvert(f"{_group_of(place, index)} has moments but no step: they can't be continued")
        moved = moved or bool(waiting)
        for one in waiting:
            entries[one] = {"step": step_tensor(number(group["step"])), **entries[one]}
        if not group.get("bias_correction", True):
            work.lost(
                _group_of(place, index),
                "bias_correction=False: torch's Adam always corrects; its next steps "
                f"differ by up to {_correction(group):.1%}",
            )
    groups = [_plain(group, "bias_correction", "step", "max_grad_norm") for group in state["param_groups"]]
    groups = [with_items(group, amsgrad=group.get("amsgrad", False)) for group in groups]
    if work.options.adam_w_mode is None:
        work.assumed(place, "adam_w_mode=True, FusedAdam's default: continue with AdamW; no file says which it was")
    else:
        # torch 2.7 and newer keep it in the group; without it an Adam is an Adam
        groups = [with_items(group, decoupled_weight_decay=work.options.adam_w_mode) for group in groups]
    steps = ": a step for each parameter" if moved else ""
    work.changed(place, f"FusedAdam's state for torch.optim.AdamW and Adam{steps}")
    return with_items(state, state=entries, param_groups=groups)


def _group_of(place: str, index: int) -> str:
    return f"{place}.param_groups[{index}]".lstrip(".")


def _correction(group: Mapping[str, Any]) -> float:
    step = max(float(number(group.get("step", 0))), 1.0)
    first, second = (float(beta) for beta in group["betas"])
    return abs(float((1 - second**step) ** 0.5 / (1 - first**step)) - 1)


def _plain(group: State, *left_out: str) -> State:
    """A group without some keys; a learning rate in a tensor (capturable=True) becomes a number."""
    new = without(group, *left_out)
    if isinstance(new.get("lr"), Tensor):
        new["lr"] = number(new["lr"])
    return new


def _adam_from_old_fused(state: State, place: str, work: Work) -> State:
    norms = sorted({float(number(group["max_grad_norm"])) for group in state["param_groups"]})
    if any(norms):
        work.lost(place, f"max_grad_norm={norms}: the old FusedAdam clipped inside step; clip before scaler.step now")
    work.lost(
        place,
        "the old FusedAdam added eps before its bias correction, and decayed by the corrected rate: no torch "
        "class does; amp_migrate.apex.contrib.optimizers.FusedAdam does",
    )
    return adam_from_fused(state, place, work)


def _adagrad_from_fused(state: State, place: str, work: Work) -> State:
    entries = {
        key: {"step": step_tensor(0.0), **entry} if isinstance(entry, dict) and "step" not in entry else entry
        for key, entry in state["state"].items()
    }
    groups = [
        with_items(group, lr_decay=group.get("lr_decay", 0), initial_accumulator_value=0)
        for group in state["param_groups"]
    ]
    work.changed(place, "FusedAdagrad's state for torch.optim.Adagrad")
    if entries:
        work.assumed(place, "step 0: FusedAdagrad counted none, and with lr_decay=0 nothing depends on it")
    _say_without_sum(state, place, work)
    return with_items(state, state=entries, param_groups=groups)


def _say_without_sum(state: State, place: str, work: Work) -> None:
    """Apex makes a sum when a parameter has its first gradient; torch's Adagrad makes all when it is constructed."""
    without_sum = [one for group in state["param_groups"] for one in group["params"] if one not in state["state"]]
    if without_sum:
        work.lost(
            place,
            f"{len(without_sum)} parameters had no gradient yet, so no sum: torch's Adagrad raises KeyError('sum') "
            "when they get one after loading this; where none has a sum, don't load it",
        )


def _sgd_from_fused(state: State, place: str, work: Work) -> State | None:
    """FusedSGD keeps buffers also without momentum; torch's SGD has none then."""
    entries: State = copy.copy(state["state"])
    for group in state["param_groups"]:
        if number(group["momentum"]):
            continue
        for one in group["params"]:
            buffer = entries.get(one, {}).get("momentum_buffer")
            if isinstance(buffer, Tensor) and is_zero(buffer):
                entries[one] = without(entries[one], "momentum_buffer")
                if not entries[one]:
                    del entries[one]
    if all(entries.get(key) is entry for key, entry in state["state"].items()):
        return None
    work.changed(place, "FusedSGD's empty momentum buffers are left out: there is no momentum")
    return with_items(state, state=entries)


def _kept_for_dropin(state: State, place: str, work: Work) -> None:
    name = family_of(state).value
    work.kept(place, f"{name}: torch.optim has none; amp_migrate.apex.optimizers.{name} continues from this layout")


def fused_from_adam(state: State, place: str, work: Work) -> State:
    """Adam's or AdamW's state for FusedAdam: steps move from the parameters to their group.

    Raises:
        CannotConvert: if parameters of one group were stepped differently, or with amsgrad or maximize.
    """
    entries: State = copy.copy(state["state"])
    groups = []
    for index, group in enumerate(state["param_groups"]):
        where = _group_of(place, index)
        for key in ("amsgrad", "maximize"):
            if group.get(key):
                raise CannotConvert(f"{where} has {key}={group[key]}, which FusedAdam doesn't have")
        steps = {int(number(entries[one]["step"])) for one in group["params"] if "step" in entries.get(one, {})}
        if len(steps) > 1:
            raise CannotConvert(f"{where}: its parameters were stepped {sorted(steps)} times; FusedAdam counts once")
        for one in group["params"]:
            if one in entries:
                entries[one] = without(entries[one], "step")
        groups.append(with_items(group, bias_correction=True, **({"step": steps.pop()} if steps else {})))
    work.changed(place, "Adam's state for apex.optimizers.FusedAdam: a step for each group")
    return with_items(state, state=entries, param_groups=groups)


_Conversion = Callable[[State, str, Work], Any]
#: what a converted checkpoint gets
TO_TORCH: Mapping[Family, _Conversion] = {
    Family.FUSED_ADAM: adam_from_fused,
    Family.OLD_FUSED_ADAM: _adam_from_old_fused,
    Family.FUSED_ADAGRAD: _adagrad_from_fused,
    Family.SGD: _sgd_from_fused,
    Family.FUSED_LAMB: _kept_for_dropin,
    Family.FUSED_NOVOGRAD: _kept_for_dropin,
}
#: family → names of the classes that its state is converted for
TARGETS: Mapping[Family, tuple[str, ...]] = {
    Family.FUSED_ADAM: ("AdamW", "Adam"),
    Family.OLD_FUSED_ADAM: ("AdamW", "Adam"),
    Family.FUSED_ADAGRAD: ("Adagrad",),
    Family.SGD: ("SGD",),
}
#: family → names of the classes that load its state as it is
SAME: Mapping[Family, tuple[str, ...]] = {
    Family.FUSED_ADAM: ("FusedAdam",),
    Family.FUSED_LAMB: ("FusedLAMB", "FusedMixedPrecisionLamb"),
    Family.FUSED_NOVOGRAD: ("FusedNovoGrad",),
    Family.FUSED_ADAGRAD: ("FusedAdagrad",),
    Family.ADAM: ("Adam", "AdamW"),
    Family.ADAGRAD: ("Adagrad", "FusedAdagrad"),
    Family.SGD: ("FusedSGD",),
}


def _numbered(spot: Spot, work: Work) -> Any:
    new = with_numbered_keys(spot.node) if is_optimizer_state(spot.node) else None
    if new is not None:
        work.changed(spot.place, "parameters are counted from 0 instead of named by their ids")
    return new


def _for_torch(spot: Spot, work: Work) -> Any:
    convert = TO_TORCH.get(family_of(spot.node)) if is_optimizer_state(spot.node) else None
    return convert(spot.node, spot.place, work) if convert else None


def _for_apex(spot: Spot, work: Work) -> Any:
    adam = is_optimizer_state(spot.node) and family_of(spot.node) is Family.ADAM
    return fused_from_adam(spot.node, spot.place, work) if adam else None


IDS = Layout(
    name="optimizer state with ids as keys",
    writer="torch.optim",
    years="until torch 1.5 (2020)",
    source="torch/optim/optimizer.py (state_dict)",
    convert=each_dict(_numbered),
)
FUSED = Layout(
    name="fused optimizer's state",
    writer="apex.optimizers, apex.contrib.optimizers",
    years="2018 to today",
    source="apex/optimizers/fused_{adam,lamb,novograd,sgd,adagrad}.py; torch/optim/{adam,adagrad,sgd}.py",
    convert=each_dict(_for_torch),
)
ADAM = Layout(
    name="Adam's state",
    writer="torch.optim.Adam, AdamW",
    years="2016 to today",
    source="torch/optim/adam.py",
    convert=each_dict(_for_apex),
)
