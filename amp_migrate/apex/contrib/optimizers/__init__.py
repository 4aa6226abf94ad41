"""The fused optimizers and FP16_Optimizer as they were before August 2019, and other variants."""

from __future__ import annotations

from .fp16_optimizer import FP16_Optimizer
from .fused_adam import FusedAdam
from .fused_lamb import FusedLAMB

__all__ = ["FP16_Optimizer", "FusedAdam", "FusedLAMB"]
