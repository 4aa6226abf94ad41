"""``SyncBatchNorm`` as Apex had it without CUDA extensions; whole-model pickles name it by this module.

Source: apex/parallel/sync_batchnorm.py.
"""

from __future__ import annotations

from typing import Any

from . import optimized_sync_batchnorm


class SyncBatchNorm(optimized_sync_batchnorm.SyncBatchNorm):
    """The same layer without ``fuse_relu`` and ``channel_last``.

    Args:
        num_features, eps, momentum, affine, track_running_stats: as in ``torch.nn.BatchNorm2d``.
        process_group: the processes that share statistics; None for all.
        channel_last: must be False.

    Raises:
        AttributeError: for ``channel_last=True``.

    Source: apex/parallel/sync_batchnorm.py.
    """

    warned = False

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        channel_last: bool = False,
    ) -> None:
        if channel_last:
            raise AttributeError(
                "channel_last is not supported by this SyncBatchNorm; use apex.parallel.SyncBatchNorm, which has it."
            )
        super().__init__(num_features, eps, momentum, affine, track_running_stats, process_group)
