"""AMP106: amp.master_params becomes the optimizer's parameters."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .registry import rule
from .source_file import SourceFile


@rule("AMP106", "amp.master_params becomes the optimizer's parameters", Level.SAFE)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: natively the optimizer holds the model's own parameters.

    Before:
        clip_grad_norm_(amp.master_params(optimizer), 1.0)

    After:
        clip_grad_norm_(model.parameters(), 1.0)
        clip_grad_norm_((p for group in optimizer.param_groups for p in group["params"]), 1.0)

    The first form where the file shows that the optimizer was built from exactly these parameters, the second
    elsewhere.

    Safe: the same parameters, in the same order.
    Source: apex/amp/_amp_state.py.
    """
    yield from source.native.reports_of("AMP106")
