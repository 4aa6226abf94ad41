"""AMP113: the loss scale is asked for with get_scale, and given to GradScaler."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .registry import rule
from .source_file import SourceFile


@rule("AMP113", "the loss scale is asked for with get_scale, and given to GradScaler", Level.SAFE)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: programs reach into Apex's _amp_state for the loss scale, to log it or to begin with another one.

    Before:
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
        amp._amp_state.loss_scalers[0]._loss_scale = 2**20
        print(amp._amp_state.loss_scalers[0].loss_scale())

    After:
        scaler = torch.amp.GradScaler("cuda", init_scale=2**20)
        print(scaler.get_scale())

    Safe: Apex changes the scale where its block ends, native AMP after the step. A loop that reads the scale between
    the two, or sets it anywhere but right behind amp.initialize, stays on the drop-in.
    Source: apex/amp/scaler.py (loss_scale, update_scale).
    """
    yield from source.native.reports_of("AMP113")
