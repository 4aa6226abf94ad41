"""AMP103: what computes a loss goes under torch.autocast."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .registry import rule
from .source_file import SourceFile


@rule("AMP103", "what computes a loss goes under torch.autocast", Level.SAFE)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: Apex's O1 changed torch's functions for the whole program. Natively the casts are on where they are asked for:
    over the model and the loss. Backward, step, clearing, autograd.grad and changes of weights stay outside.

    Before:
        output = model(data)
        loss = criterion(output, target)

    After:
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(data)
            loss = criterion(output, target)

    A later statement that computes with a half-precision value gets a region of its own. A loss that is computed in the
    call that takes it, update(criterion(model(x), y)), gets a statement in front of that call. With --torch below 1.10
    it is torch.cuda.amp.autocast.

    Safe: the same operations run under autocast as on the drop-in, in the same precision.
    Source: torch.amp, "Automatic Mixed Precision examples".
    """
    yield from source.native.reports_of("AMP103")
