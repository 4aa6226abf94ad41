"""AMP108: amp.state_dict() becomes scaler.state_dict()."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .registry import rule
from .source_file import SourceFile


@rule("AMP108", "amp.state_dict() becomes scaler.state_dict()", Level.SAFE)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: the loss scale belongs into the checkpoint, under the key where it always was.

    Before:
        checkpoint["amp"] = amp.state_dict()
        amp.load_state_dict(checkpoint["amp"])

    After:
        checkpoint["amp"] = scaler.state_dict()
        scaler.load_state_dict(checkpoint["amp"])

    Checkpoints that Apex wrote have another layout: convert them with `python -m amp_migrate.convert OLD NEW`;
    the place that loads is listed. Guards around saving and loading stay, since a disabled scaler saves {}.

    Safe: a run that is saved and resumed goes on with the same scale.
    Sources: apex/amp/frontend.py; torch.amp.GradScaler.load_state_dict.
    """
    yield from source.native.reports_of("AMP108")
