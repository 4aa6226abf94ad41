"""How gradients are added up over the processes: the options of Apex's DistributedDataParallel as torch's communication
hook.

Source: ``allreduce_bucket`` in apex/parallel/distributed.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_HALF_TYPES = (torch.float16, torch.bfloat16)


class GradientReduction:
    """Options of the reduction, and the switch that turns it off.

    Holds no module: torch keeps it where the garbage collector can't look.

    Args:
        average: divide by the number of processes.
        predivide_factor: divide by it before adding up; with ``average``, only the rest is divided afterwards.
        always_fp32: add up half gradients in float32.
    """

    def __init__(self, average: bool = True, predivide_factor: float = 1.0, always_fp32: bool = False) -> None:
        self.average = average
        self.predivide_factor = predivide_factor
        self.always_fp32 = always_fp32
        self.enabled = True

    @property
    def is_plain_mean(self) -> bool:
        """Whether torch's own reduction does the same."""
        return self.average and self.predivide_factor == 1.0 and not self.always_fp32

    def before(self, gradients: Tensor) -> Tensor:
        """What to add up: ``gradients`` in place, or a float32 copy."""
        if self.always_fp32 and gradients.dtype in _HALF_TYPES:
            gradients = gradients.float()
        if self.predivide_factor != 1.0:
            gradients.mul_(1.0 / self.predivide_factor)
        return gradients

    def after(self, total: Tensor, gradients: Tensor) -> Tensor:
        """Finish the ``total`` over all processes, and return it in ``gradients``, which is written to."""
        if self.average:
            total.mul_(self.predivide_factor / torch.distributed.get_world_size())
        return gradients if total.data_ptr() == gradients.data_ptr() else gradients.copy_(total)

    def reduce_now(self, gradients: Tensor) -> None:
        """Reduce ``gradients`` in place, and wait."""
        total = self.before(gradients)
        torch.distributed.all_reduce(total)
        self.after(total, gradients)


def reduce_bucket(reduction: GradientReduction, bucket: Any) -> Any:
    """The communication hook: a future of the bucket's reduced gradients, or of its own ones while switched off."""
    if not hasattr(bucket, "buffer"):  # torch 1.8 and 1.9
        return _reduce_old_bucket(reduction, bucket)
    gradients = bucket.buffer()
    if not reduction.enabled:
        return _completed(gradients)
    work = torch.distributed.all_reduce(reduction.before(gradients), async_op=True)
    return work.get_future().then(lambda future: reduction.after(future.value()[0], gradients))


# torch compares a hook's annotations with its own types, and ours are text
reduce_bucket.__annotations__ = {}


def _reduce_old_bucket(reduction: GradientReduction, bucket: Any) -> Any:
    gradients = bucket.get_tensor() if hasattr(bucket, "get_tensor") else bucket.get_tensors()[0]
    if reduction.enabled:
        reduction.reduce_now(gradients)
    return _completed([gradients])


def _completed(value: Any) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(value)
    return future
