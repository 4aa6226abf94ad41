"""AMP104: optimizer.step() becomes scaler.step(optimizer) and scaler.update()."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .registry import rule
from .source_file import SourceFile


@rule("AMP104", "optimizer.step() becomes scaler.step(optimizer) and scaler.update()", Level.SAFE)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: GradScaler skips the step of an overflow itself, and moves its scale in update(). There is one update behind
    every step, or one behind the last of several steps that follow each other with the same scale.

    Before:
        optimizer.step()

    After:
        scaler.step(optimizer)
        scaler.update()

    A floor or ceiling of the loss scale is kept by a second update. A handler that goes on after an exception resets
    the scaler: scaler.update(scaler.get_scale()). With --level review, a path on which the program leaves the step out
    (`if not isfinite(norm): continue`) updates as well.

    Safe: only optimizers that went through amp.initialize and scale_loss; others keep their step().
    Sources: apex/amp/_process_optimizer.py; torch.amp.GradScaler.step.
    """
    yield from source.native.reports_of("AMP104")
