"""``DistributedFusedLAMB``: importable, and says what to use instead.

Source: apex/contrib/optimizers/distributed_fused_lamb.py.
"""

from __future__ import annotations

from typing import Any

import torch


class DistributedFusedLAMB(torch.optim.Optimizer):
    """Sharded optimizer of NVIDIA's Apex, made of CUDA kernels and NCCL calls; no equivalent here.

    Raises:
        NotImplementedError: when built.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "DistributedFusedLAMB has no equivalent in the drop-in. apex.optimizers.FusedLAMB under "
            "DistributedDataParallel computes the same update with unsharded state; don't shard it with "
            "ZeroRedundancyOptimizer or FSDP, where it would clip by the norm of one shard."
        )
