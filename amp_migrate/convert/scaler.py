"""The state of a loss scaler, as Apex's ``amp.state_dict()`` and torch's ``GradScaler.state_dict()``."""

from __future__ import annotations

from typing import Any, Mapping

from .errors import CannotConvert

#: what GradScaler's state holds besides scale and tracker, with Apex's fixed values (apex/amp/scaler.py)
_FACTORS: Mapping[str, Any] = {"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}
_PREFIX = "loss_scaler"


def scaler_state(state: Mapping[str, Any], index: int = 0) -> dict[str, Any]:
    """Return a state that ``GradScaler.load_state_dict`` takes.

    Args:
        state: what Apex's ``amp.state_dict()`` returned (``{"loss_scaler0": {"loss_scale": 65536.0, "unskipped": 7}}``)
            or what ``GradScaler.state_dict()`` did: that comes back as it is, also the ``{}`` of a disabled scaler.
        index: which of Apex's loss scalers, from 0.

    Raises:
        CannotConvert: for anything else, and for a scaler that the state doesn't have.

    Sources: apex/amp/frontend.py (state_dict); torch.amp.GradScaler.state_dict.
    """
    if not state or "scale" in state:
        return dict(state)
    scalers = [key for key in state if str(key).startswith(_PREFIX)]
    if not scalers:
        keys = sorted(map(str, state))
        raise CannotConvert(f"neither a state of Apex's amp nor of a GradScaler: it has the keys {keys}")
    name = f"{_PREFIX}{index}"
    if name not in state:
        raise CannotConvert(f"the state has no {name}; it has {sorted(map(str, scalers))}")
    old = state[name]
    try:
        scale, tracker = float(old["loss_scale"]), int(old["unskipped"])
    except (KeyError, TypeError, ValueError) as error:
        raise CannotConvert(f"{name} should hold loss_scale and unskipped, and is {old!r}") from error
    return {"scale": scale, **_FACTORS, "_growth_tracker": tracker}
