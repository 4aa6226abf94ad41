"""``DistributedFusedAdam``: importable, and says what to use instead.

Source: apex/contrib/optimizers/distributed_fused_adam.py.
"""

from __future__ import annotations

from typing import Any

import torch


class DistributedFusedAdam(torch.optim.Optimizer):
    """Sharded optimizer of NVIDIA's Apex, made of CUDA kernels and NCCL calls; no equivalent here.

    Raises:
        NotImplementedError: when built.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "DistributedFusedAdam has no equivalent in the drop-in. Shard the state of an ordinary optimizer: "
            "torch.distributed.optim.ZeroRedundancyOptimizer(params, torch.optim.AdamW), or wrap the model in FSDP."
        )
