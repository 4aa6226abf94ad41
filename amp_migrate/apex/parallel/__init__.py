"""Training in several processes: gradient averaging, batchnorm over all processes, LARC.

Source: apex/parallel/__init__.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .distributed import DistributedDataParallel, Reducer
from .LARC import LARC
from .optimized_sync_batchnorm import SyncBatchNorm

#: torch's reduce operations; None where torch was built without distributed
ReduceOp: Any = getattr(torch.distributed, "ReduceOp", None)

__all__ = [
    "LARC",
    "DistributedDataParallel",
    "ReduceOp",
    "Reducer",
    "SyncBatchNorm",
    "convert_syncbn_model",
    "create_syncbn_process_group",
]


def convert_syncbn_model(module: nn.Module, process_group: Any = None, channel_last: bool = False) -> nn.Module:
    """Replace every batchnorm layer below ``module``, in place, by a :class:`SyncBatchNorm`.

    Parameters, running statistics, hyperparameters and the training flag stay the same; parameters are the same
    objects, so an optimizer that was built before keeps working. InstanceNorm layers are left alone.

    Args:
        module: any model; if it is itself a batchnorm layer, use what is returned.
        process_group: the processes that share statistics; None for all.
        channel_last: whether inputs have their channels in the last dimension.

    Source: apex/parallel/__init__.py.
    """
    if isinstance(module, nn.modules.instancenorm._InstanceNorm):  # a batchnorm by inheritance on old torch
        return module
    converted = module
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        converted = _synchronised(module, process_group, channel_last)
    for name, child in module.named_children():
        converted.add_module(name, convert_syncbn_model(child, process_group, channel_last))
    return converted


def _synchronised(old: Any, process_group: Any, channel_last: bool) -> SyncBatchNorm:
    new = SyncBatchNorm(
        old.num_features,
        old.eps,
        old.momentum,
        old.affine,
        old.track_running_stats,
        process_group,
        channel_last,
        getattr(old, "fuse_relu", False),
    )
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        setattr(new, name, getattr(old, name))
    new.training = old.training
    return new


def create_syncbn_process_group(group_size: int) -> Any:
    """Split all processes into groups of ``group_size`` neighbours; return the one that this process is in.

    Every process must call it. Pass the result as ``process_group`` to the functions that synchronise batchnorm.

    Args:
        group_size: number of processes per group; 0 for all of them, which returns None.

    Raises:
        AssertionError: if the number of processes isn't a multiple of ``group_size``.

    Source: apex/parallel/__init__.py.
    """
    if group_size == 0:
        return None
    world_size = torch.distributed.get_world_size()
    problem = f"group_size={group_size} must divide the number of processes, which is {world_size}."
    assert world_size >= group_size, problem
    assert world_size % group_size == 0, problem
    own = torch.distributed.get_rank() // group_size
    starts = range(0, world_size, group_size)
    # making a group is collective: all processes make all groups
    groups = [torch.distributed.new_group(ranks=list(range(start, start + group_size))) for start in starts]
    return groups[own]
