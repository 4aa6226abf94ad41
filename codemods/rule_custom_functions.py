"""AMP111: autograd Functions that multiply matrices get custom_fwd and custom_bwd."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .registry import rule
from .source_file import SourceFile


@rule("AMP111", "autograd Functions that multiply matrices get custom_fwd and custom_bwd", Level.SAFE)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: backward runs outside autocast, so that a Function which multiplies half-precision and float32 tensors fails
    there. With the decorators its backward runs in the casts of its forward.

    Before:
        class Masked(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, weight): ...

    After:
        class Masked(torch.autograd.Function):
            @staticmethod
            @torch.amp.custom_fwd(device_type="cuda")
            def forward(ctx, x, weight): ...

    With --torch below 2.4 it is torch.cuda.amp.custom_fwd; other devices then stay on the drop-in.

    Safe: no cast_inputs is given, so forward computes as before.
    Source: torch.amp, "Autocast and Custom Autograd Functions".
    """
    yield from source.native.reports_of("AMP111")
