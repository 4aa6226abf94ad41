"""AMP101: amp.initialize becomes a GradScaler."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .registry import rule
from .source_file import SourceFile


@rule("AMP101", "amp.initialize becomes a GradScaler", Level.SAFE)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: torch's own AMP needs no models or optimizers changed; it needs a loss scale, which lives in a scaler.
    The scaler is made where amp was initialized, so a fresh one is made where Apex made a fresh one (per fold,
    per trainer).

    Before:
        if args.fp16:
            model, optimizer = amp.initialize(model, optimizer, opt_level="O1")

    After:
        scaler = torch.amp.GradScaler("cuda", enabled=args.fp16)

    The guard becomes enabled=, as a bool. Targets that aren't the arguments themselves stay as assignments. A
    computed opt_level also switches: enabled=args.opt_level != "O0". Apex's ceiling of 2**24 for a dynamic scale
    is left out: GradScaler has none. A program that scales no loss gets no scaler: its model infers under autocast.

    The interface of 2018 is followed as well: `handle = amp.init()` becomes the scaler,
    `handle.wrap_optimizer(optimizer)` goes, and their scale_loss is AMP102's. A loop that accumulates gradients under
    a handle stays, for the handle unscaled those that were there once more. With `--level review` so is
    FP16_Optimizer: `optimizer.backward(loss)`, `clip_master_grads` and every `.half()` of the file become plain calls.

    Safe: GradScaler has Apex's defaults for the start scale (2**16), its growth (2, after 2000 steps) and backoff
    (0.5).
    Sources: apex/amp/frontend.py, apex/amp/scaler.py, apex/amp/handle.py (2018), apex/fp16_utils/fp16_optimizer.py;
    torch.amp.GradScaler.
    """
    yield from source.native.reports_of("AMP101")
