"""AMP107: if fp16: … else: … becomes one branch."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .registry import rule
from .source_file import SourceFile


@rule("AMP107", "if fp16: … else: … becomes one branch", Level.SAFE)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: a disabled scaler and a disabled autocast do nothing, so that one branch serves both cases.

    Before:
        if args.fp16:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()

    After:
        scaler.scale(loss).backward()

    Only if the plain branch is the other one without scaling, and the test is the condition under which amp was
    initialized. Other branches stay.

    Safe: with the flag off, GradScaler(enabled=False) returns the loss as it is and only calls optimizer.step().
    Source: torch.amp.GradScaler(enabled=…).
    """
    yield from source.native.reports_of("AMP107")
