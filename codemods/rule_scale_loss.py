"""AMP102: with amp.scale_loss becomes scaler.scale(loss).backward()."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .registry import rule
from .source_file import SourceFile


@rule("AMP102", "with amp.scale_loss becomes scaler.scale(loss).backward()", Level.SAFE)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: the block scaled the loss on entry and unscaled the gradients on exit; natively they stay scaled until the step
    or an unscale_ (AMP105). What else stands in the block stays, in its place.

    Before:
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()

    After:
        scaler.scale(loss).backward()

    delay_unscale= goes: it is how GradScaler always works. A plain backward into the same gradients is scaled as well.

    Safe where every path from here to the step, and from the step to the next backward, is as the soundness rules ask;
    otherwise the training loop stays on the drop-in (AMP190).
    Sources: apex/amp/handle.py; torch.amp, "Gradient accumulation".
    """
    yield from source.native.reports_of("AMP102")
