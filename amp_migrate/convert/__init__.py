"""Take over checkpoints that Apex wrote. So far: the state of its loss scalers."""

from __future__ import annotations

from amp_migrate.convert.errors import CannotConvert as CannotConvert
from amp_migrate.convert.scaler import scaler_state as scaler_state

__all__ = ["CannotConvert", "scaler_state"]
