"""The loss scaler objects in checkpoints of FP16_Optimizer, of both eras, as the scaler that it uses now."""

from __future__ import annotations

import copy
from typing import Any

from ...notices import notice_once
from ..amp.scaler import LossScaler

#: DynamicLossScaler had no ceiling; this is where float32 ends
_NO_CEILING = 2.0**127


def as_loss_scaler(saved: Any) -> LossScaler:
    """Return ``amp.scaler.LossScaler`` with the state of ``saved``, which stays as it is.

    Args:
        saved: an ``amp.scaler.LossScaler`` (since February 2019), a ``DynamicLossScaler`` or a ``LossScaler`` of
            ``fp16_utils`` (before), or an object with the attributes of one.

    Raises:
        TypeError: for anything else.
    """
    if isinstance(saved, LossScaler):
        return copy.deepcopy(saved)
    if hasattr(saved, "_loss_scale"):
        fresh = LossScaler.__new__(LossScaler)
        fresh.__setstate__(vars(saved))
        return fresh
    if hasattr(saved, "cur_iter"):
        return _from_dynamic(saved)
    if hasattr(saved, "cur_scale"):
        return LossScaler(float(saved.cur_scale))
    raise TypeError(
        f"The checkpoint's 'loss_scaler' is a {type(saved).__name__}, not a loss scaler of Apex. Is it a checkpoint "
        "of FP16_Optimizer.state_dict()? Convert others with `python -m amp_migrate.convert`."
    )


def _from_dynamic(saved: Any) -> LossScaler:
    if saved.scale_factor != 2:
        notice_once(f"The saved loss scaler's scale_factor={saved.scale_factor} is taken as 2, the only one there is.")
    scaler = LossScaler(
        "dynamic",
        init_scale=float(saved.cur_scale),
        scale_window=saved.scale_window,
        min_loss_scale=1.0,
        max_loss_scale=_NO_CEILING,
    )
    # it grew when (cur_iter - last_overflow_iter) was a multiple of the window, then counted the iteration
    scaler._unskipped = (saved.cur_iter - saved.last_overflow_iter - 1) % saved.scale_window
    return scaler
