"""Batchnorm over the batches of all processes.

Source: apex/parallel/optimized_sync_batchnorm.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from .sync_batchnorm_kernel import SyncBatchnormFunction, _size, joint_statistics

_HALF_TYPES = (torch.float16, torch.bfloat16)


class SyncBatchNorm(_BatchNorm):
    """``BatchNorm*d`` whose batch statistics are those of all processes together. Keys and values of the state dict are
    batchnorm's. With one process, and in evaluation, it is batchnorm.

    Args:
        num_features, eps, momentum, affine, track_running_stats: as in ``torch.nn.BatchNorm2d``.
        process_group: the processes that share statistics; None for all.
        channel_last: whether inputs are (N, ..., C).
        fuse_relu: apply relu to the output.

    Source: apex/parallel/optimized_sync_batchnorm.py.
    """

    # for pickles of Apex's Python-only class, which lacked them
    channel_last = False
    fuse_relu = False

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        channel_last: bool = False,
        fuse_relu: bool = False,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)  # type: ignore[arg-type,unused-ignore]
        self.process_group = process_group
        self.channel_last = channel_last
        self.fuse_relu = fuse_relu

    def _specify_process_group(self, process_group: Any) -> None:
        self.process_group = process_group

    def _specify_channel_last(self, channel_last: bool) -> None:
        self.channel_last = channel_last

    def forward(self, input: Tensor, z: Tensor | None = None) -> Tensor:
        """Normalise; add ``z``, then relu, if asked.

        Args:
            input: (N, C, ...), or (N, ..., C) with ``channel_last``; any floating dtype.
            z: tensor of the input's shape to add to the normalised input.

        Returns:
            Tensor of the input's shape and dtype.

        Raises:
            ValueError: for a single value per channel in training, with one process.
        """
        if self.channel_last and input.dim() > 2:
            out = self._normalise(input.reshape(-1, input.size(-1))).view(input.shape)
        else:
            out = self._normalise(input)
        if z is not None:
            out = out + z
        return F.relu(out) if self.fuse_relu else out

    def _normalise(self, x: Tensor) -> Tensor:
        """Batchnorm of ``x`` (N, C, ...)."""
        factor = self._count_batch()
        # as in Apex, a layer without running statistics also synchronises in evaluation
        from_batch = self.training or not self.track_running_stats or self.running_mean is None
        world_size = self._processes() if from_batch else 1
        if world_size > 1 and x.is_cuda:
            return self._by_torch(x, factor, world_size)
        wide = x.float() if self._needs_float32(x, world_size) else x
        if world_size > 1:
            out = self._by_gathering(wide, factor, world_size)
        else:
            running = (self.running_mean, self.running_var) if self._updates() or not from_batch else (None, None)
            out = F.batch_norm(wide, *running, self.weight, self.bias, from_batch, factor, self.eps)
        return out.to(x.dtype)

    def _needs_float32(self, x: Tensor, world_size: int) -> bool:
        """Whether half ``x`` is widened: to gather sums, and where kernels may lack half beside float32 parameters."""
        if x.dtype not in _HALF_TYPES:
            return False
        own = self.running_mean if self.running_mean is not None else self.weight
        return world_size > 1 or (not x.is_cuda and own is not None and own.dtype != x.dtype)

    def _processes(self) -> int:
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return _size(self.process_group)
        return 1

    def _updates(self) -> bool:
        return self.training and self.track_running_stats and self.running_mean is not None

    def _count_batch(self) -> float:
        """Count a training batch; return how much its statistics weigh in the running ones."""
        if not self._updates():
            return 0.0
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        if self.momentum is None:
            return 1.0 / float(self.num_batches_tracked)  # type: ignore[arg-type,unused-ignore]
        return float(self.momentum)

    def _by_gathering(self, x: Tensor, factor: float, world_size: int) -> Tensor:
        with torch.no_grad():
            mean, var, count = joint_statistics(x, self.process_group)
            if self._updates():
                for running, value in (
                    (self.running_mean, mean),
                    (self.running_var, var * (count / (count - 1).clamp(min=1))),
                ):
                    running.mul_(1 - factor).add_(value.to(running.dtype), alpha=factor)  # type: ignore[union-attr]
        apply: Any = SyncBatchnormFunction.apply
        result: Tensor = apply(x, self.weight, self.bias, mean, var, self.eps, self.process_group, world_size, count)
        return result

    def _by_torch(self, x: Tensor, factor: float, world_size: int) -> Tensor:
        """torch's own CUDA kernels, which its module refuses on other devices."""
        from torch.nn.modules._functions import SyncBatchNorm as Function

        apply: Any = Function.apply
        running = (self.running_mean, self.running_var) if self._updates() else (None, None)
        group = torch.distributed.group.WORLD if self.process_group is None else self.process_group
        result: Tensor = apply(x, self.weight, self.bias, *running, self.eps, factor, group, world_size)
        return result
