"""Tests of ``amp_migrate.apex.amp``."""

from __future__ import annotations

import pytest
import torch

from amp_migrate.apex import _native


def float16_runs() -> bool:
    """Whether this torch can train in float16 on a CPU."""
    return _native.autocast_works("cpu", torch.float16) and _native.computes_in("cpu", torch.float16)


needs_float16 = pytest.mark.skipif(
    not float16_runs(), reason=f"torch {torch.__version__} has no float16 on a CPU: the drop-in stays in float32 there"
)
