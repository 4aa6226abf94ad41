"""AMP105: gradients are unscaled before they are read or changed."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .registry import rule
from .source_file import SourceFile


@rule("AMP105", "gradients are unscaled before they are read or changed", Level.SAFE)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: under Apex gradients were unscaled from the end of the block on. Whatever reads or changes them before the step
    (clipping, norms, noise, p.grad = None), also through a helper, needs scaler.unscale_ first.

    Before:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    After:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)

    It is written once per step, and only where no further backward can come before the step; else the loop stays on the
    drop-in. Where the first use may be left out (noise under an option, then clipping), it stands before that option,
    or right behind the backward.

    Safe: what stands inside the scale_loss block saw scaled gradients, and still does.
    Source: torch.amp, "Gradient clipping".
    """
    yield from source.native.reports_of("AMP105")
