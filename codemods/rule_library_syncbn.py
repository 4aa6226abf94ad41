"""AMP202: batchnorm over several processes, and the rest of apex.parallel."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .library_plan import reports_of
from .registry import rule
from .source_file import SourceFile


@rule("AMP202", "Apex's synchronised batchnorm becomes torch's", Level.REVIEW)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: torch.nn.SyncBatchNorm computes what Apex's did, under the same names in a state dict.

    Before:
        model = apex.parallel.convert_syncbn_model(model, process_group=group)
        if isinstance(layer, apex.parallel.SyncBatchNorm): ...

    After:
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model, process_group=group)
        if isinstance(layer, (apex.parallel.SyncBatchNorm, torch.nn.SyncBatchNorm)): ...

    The parameters stay the same objects. A type check names both classes, since another file may make either.

    Safe: create_syncbn_process_group(0), which is None, and ReduceOp, which is torch's.

    Review: the layers, for CUDA and torch 2.0 or newer. They train the same, but their type is another one, which a
    class that another file hands on doesn't show. Without running statistics (track_running_stats=False) they don't
    synchronise in evaluation. A layer made by its class could be called with a second input under Apex.

    Stays on the drop-in: channel_last and fuse_relu, which torch lacks; other devices and older torch, where
    torch's layer raises; create_syncbn_process_group, unless its size is 0 (then it is None); Reducer; LARC, which
    may wrap an optimizer beside a native scaler; and apex.parallel.multiproc, for which there is torchrun.
    """
    yield from reports_of(source, "AMP202")
