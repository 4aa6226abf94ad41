"""The state of a loss scaler: every layout that Apex and its neighbours wrote, as torch's GradScaler has it, and back.

An update of Apex's and one of torch's do the same to these numbers (simulated on random sequences of overflows), apart
from the bounds that GradScaler lacks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Mapping

from .errors import CannotConvert
from .records import PickledObject
from .values import number

#: what GradScaler's state holds besides scale and tracker, with Apex's fixed values (apex/amp/scaler.py)
FACTORS: Mapping[str, Any] = {"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}
_TRACKER = "_growth_tracker"
_NATIVE_KEYS = {"scale", *FACTORS, _TRACKER}
_APEX_KEY = re.compile(r"loss_scaler(\d+)\Z")
#: amp's ceiling (apex/amp/scaler.py: max_loss_scale=2.**24)
_CEILING = 2.0**24
#: an interval that no training reaches: GradScaler takes no growth_factor of 1
NEVER = 2**31 - 1
#: Megatron-LM's --loss-scale-window, which its state doesn't hold
_MEGATRON_WINDOW = 1000
#: where an optimizer's wrapper keeps a scaler object or state
_INSIDE = ("loss_scaler", "grad_scaler")


@dataclass(frozen=True)
class Found:
    """A scaler's state for GradScaler, and what that leaves out.

    ``dynamic`` is None where the layout doesn't say.
    """

    state: dict[str, Any]
    dynamic: bool | None = None
    lost: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


def scaler_state(state: Any, index: int = 0) -> dict[str, Any]:
    """Return a state that ``GradScaler.load_state_dict`` takes.

    Args:
        state: what Apex's ``amp.state_dict()`` returned (``{"loss_scaler0": {"loss_scale": 65536.0, "unskipped": 7}}``)
            or ``FP16_Optimizer.state_dict()`` did, one of their loss scaler objects, or what
            ``GradScaler.state_dict()`` returned: that comes back as it is, also the ``{}`` of a disabled scaler.
        index: which of Apex's loss scalers, from 0.

    Raises:
        CannotConvert: for anything else, and for a scaler that the state doesn't have.

    Sources: apex/amp/frontend.py (state_dict); apex/fp16_utils/fp16_optimizer.py; torch.amp.GradScaler.state_dict.
    """
    found = found_in(state)
    if found is not None:
        return found.state
    if not isinstance(state, Mapping):
        raise CannotConvert(f"neither a state of Apex's amp nor of a GradScaler: it is a {type(state).__name__}")
    if not state or "scale" in state:
        return dict(state)
    return _numbered(state, index)


def _numbered(state: Mapping[str, Any], index: int) -> dict[str, Any]:
    scalers = [key for key in state if _APEX_KEY.match(str(key))]
    if not scalers:
        keys = sorted(map(str, state))
        raise CannotConvert(f"neither a state of Apex's amp nor of a GradScaler: it has the keys {keys}")
    name = f"loss_scaler{index}"
    if name not in state:
        raise CannotConvert(f"the state has no {name}; it has {sorted(map(str, scalers))}")
    old = state[name]
    return dict(old) if is_native(old) else from_amp(name, old)


def from_amp(name: str, old: Any) -> dict[str, Any]:
    """One entry of ``amp.state_dict()`` for GradScaler.

    Raises:
        CannotConvert: if it doesn't hold the two numbers.
    """
    try:
        scale, tracker = float(number(old["loss_scale"])), int(number(old["unskipped"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CannotConvert(f"{name} should hold loss_scale and unskipped, and is {old!r}") from error
    return {"scale": scale, **FACTORS, _TRACKER: tracker}


def is_amp_state(value: Any) -> bool:
    """Whether this is what ``amp.state_dict()`` returned, by all of its keys and what they hold."""
    return _numbered_only(value) and all(
        isinstance(one, Mapping) and "loss_scale" in one and "unskipped" in one for one in value.values()
    )


def is_native(value: Any) -> bool:
    """Whether this is what ``GradScaler.state_dict()`` returned."""
    return isinstance(value, Mapping) and set(value) >= _NATIVE_KEYS


def is_several_native(value: Any) -> bool:
    """Whether this is what conversion makes of an amp state with several loss scalers."""
    return _numbered_only(value) and all(is_native(one) for one in value.values())


def _numbered_only(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(_APEX_KEY.match(str(key)) for key in value)


def found_in(value: Any) -> Found | None:
    """The scaler that ``value`` is, or that it holds as FP16_Optimizer's state does; None if there is none.

    Args:
        value: an object of one of Apex's, DeepSpeed's or Megatron's loss scaler classes, its attributes, or a state
            dict that has one inside or beside its optimizer.
    """
    if isinstance(value, Mapping):
        for key in _INSIDE:
            if key in value and (found := found_in(value[key])) is not None:
                return found
        attributes: Mapping[str, Any] = value
    elif isinstance(value, PickledObject):
        attributes = value.attributes
    elif "scaler" in type(value).__name__.lower():
        attributes = getattr(value, "__dict__", {})
    else:
        return None
    for key, reader in _READERS.items():
        if key in attributes and "growth_factor" not in attributes:
            return reader(attributes)
    return None


def _of_amp(attributes: Mapping[str, Any]) -> Found:
    """``apex.amp.scaler.LossScaler``, since February 2019 (889d1712)."""
    state = {
        "scale": float(number(attributes["_loss_scale"])),
        **FACTORS,
        "growth_interval": int(number(attributes.get("_scale_seq_len", FACTORS["growth_interval"]))),
        _TRACKER: int(number(attributes.get("_unskipped", 0))),
    }
    floor, ceiling = attributes.get("_min_loss_scale"), attributes.get("_max_loss_scale")
    lost = []
    if floor is not None:
        lost.append(f"min_loss_scale={floor}: GradScaler has no floor")
    if ceiling is not None and ceiling != _CEILING:
        lost.append(f"max_loss_scale={ceiling}: GradScaler has no ceiling")
    return Found(state, bool(attributes.get("dynamic", True)), tuple(lost))


def _of_counting(attributes: Mapping[str, Any]) -> Found:
    """``DynamicLossScaler`` and ``LossScaler`` of 2018, and everything that copied them.

    Sources: apex/fp16_utils/loss_scaler.py, apex/contrib/optimizers/fp16_optimizer.py, mmcv/runner/fp16_utils.py,
    deepspeed/runtime/fp16/loss_scaler.py, megatron/fp16/loss_scaler.py (b84d7a9012).
    """
    scale, last = float(number(attributes["cur_scale"])), attributes.get("last_overflow_iter")
    if last is None or attributes.get("mode") == "static" or attributes.get("dynamic_loss_scale") is False:
        return Found({"scale": scale, **FACTORS, _TRACKER: 0}, False)
    factor, window = float(number(attributes["scale_factor"])), int(number(attributes["scale_window"]))
    state = {
        "scale": scale,
        "growth_factor": factor,
        "backoff_factor": 1.0 / factor,
        "growth_interval": window,
        # it grew when (cur_iter - last_overflow_iter) was a multiple of the window, then counted the iteration
        _TRACKER: int(number(attributes["cur_iter"]) - number(last) - 1) % window,
    }
    return Found(state, True, _hysteresis(attributes))


def _hysteresis(attributes: Mapping[str, Any]) -> tuple[str, ...]:
    lost = []
    if number(attributes.get("delayed_shift", 1)) != 1 or "cur_hysteresis" in attributes:
        lost.append(f"hysteresis {attributes.get('cur_hysteresis', attributes.get('delayed_shift'))!r}")
    if number(attributes.get("min_scale", 1)) != 1:
        lost.append(f"min_scale={attributes['min_scale']}")
    return tuple(f"{what}: GradScaler has none" for what in lost)


def _of_megatron(attributes: Mapping[str, Any]) -> Found:
    """Megatron-LM's DynamicGradScaler.state_dict() (megatron/optimizer/grad_scaler.py, since 2020-12)."""
    state = {
        "scale": float(number(attributes["scale"])),
        **FACTORS,
        "growth_interval": _MEGATRON_WINDOW,
        _TRACKER: int(number(attributes["growth_tracker"])),
    }
    lost = ("hysteresis_tracker: GradScaler has none",)
    return Found(state, True, lost, (f"growth_interval={_MEGATRON_WINDOW} (--loss-scale-window)",))


#: an attribute that only this kind has → its reader
_READERS = {"_loss_scale": _of_amp, "cur_scale": _of_counting, "hysteresis_tracker": _of_megatron}


def from_native(state: Mapping[str, Any]) -> dict[str, Any]:
    """A GradScaler's state as one entry of ``amp.state_dict()``.

    Raises:
        CannotConvert: if the scaler's factors are others than Apex's fixed ones: Apex has no place for them.
    """
    other = {key: state[key] for key, value in FACTORS.items() if number(state[key]) != value}
    if other:
        raise CannotConvert(
            f"Apex always has {dict(FACTORS)}, and would lose {other}. Convert a scaler with the default factors, or "
            "set them back in the file first."
        )
    return {"loss_scale": float(number(state["scale"])), "unskipped": int(number(state[_TRACKER]))}


def per_update(state: dict[str, Any], accumulation_steps: int) -> dict[str, Any]:
    """Count in updates: ``amp`` counted every backward, a loop with GradScaler counts one per optimizer step."""
    if accumulation_steps == 1:
        return state
    interval = max(1, state["growth_interval"] // accumulation_steps)
    return {
        **state,
        "growth_interval": interval,
        _TRACKER: min(state[_TRACKER] // accumulation_steps, interval - 1),
    }
