"""What the rewritten code should run on, and how far the rules may go. Plain values; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

from .findings import Level

#: rewrite to native AMP, or only to the drop-in
NATIVE, SHIM = "native", "shim"
FLOAT16, BFLOAT16 = "float16", "bfloat16"

Version = Tuple[int, int]


@dataclass(frozen=True)
class Target:
    """What to rewrite to.

    Args:
        to: ``"native"`` (torch's own AMP; what can't be shown to train the same goes to the drop-in) or ``"shim"``.
        device_type: the first argument of ``torch.autocast`` (``"cuda"``, ``"cpu"``, ``"xpu"``, ``"mps"`` …).
        dtype: ``"float16"`` with a loss scale, or ``"bfloat16"`` without.
        torch: the oldest torch that the output must run on, as (major, minor).
        level: ``SAFE``, or ``REVIEW`` to also apply what changes numerics or defaults.
        autocast_eval: also put evaluation under autocast, as it was under Apex.
        keep_old_checkpoints: loading accepts Apex's state beside GradScaler's.
        guard_scheduler: a learning-rate schedule doesn't advance on a skipped step.
        partner: the path of another file with which this one shares amp; then its loops stay on the drop-in.
    """

    to: str = NATIVE
    device_type: str = "cuda"
    dtype: str = FLOAT16
    torch: Version = (2, 3)
    level: Level = Level.SAFE
    autocast_eval: bool = False
    keep_old_checkpoints: bool = False
    guard_scheduler: bool = False
    partner: str = ""
