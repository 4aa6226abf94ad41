"""AMP109: the scaler is handed to whoever needs it."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .registry import rule
from .source_file import SourceFile


@rule("AMP109", "the scaler is handed to whoever needs it", Level.SAFE)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: Apex kept its scalers in a global. A native scaler is a local variable, an attribute of the trainer, or a
    keyword-only parameter that is handed through the calls of the file (also through functools.partial).

    Before:
        def train(model, optimizer): ...
        train(model, optimizer)

    After:
        def train(model, optimizer, *, scaler=None):
            scaler = scaler or torch.amp.GradScaler("cuda", enabled=False)
        train(model, optimizer, scaler=scaler)

    Keyword-only, so that no other caller's arguments move; without it a caller trains in float32. A trainer whose
    initializing method may not have run gets a disabled scaler in its __init__.

    Safe: functions that are overridden, decorated or handed on as values aren't changed: the loop stays on the drop-in.
    """
    yield from source.native.reports_of("AMP109")
