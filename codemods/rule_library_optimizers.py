"""AMP203: apex.optimizers."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .library_plan import reports_of
from .registry import rule
from .source_file import SourceFile


@rule("AMP203", "Apex's fused optimizers become torch's", Level.REVIEW)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: torch's optimizers take the same steps, up to rounding, when every default that differs is written out.

    Before:
        optimizer = FusedAdam(model.parameters(), 1e-3, True, (0.9, 0.98))
        optimizer = FusedAdam(model.parameters(), adam_w_mode=False, weight_decay=0.1)
        optimizer = FusedSGD(model.parameters(), 0.1, momentum=0.9, set_grad_none=True)

    After:
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.98), weight_decay=0.0)
        optimizer = torch.optim.Adam(model.parameters(), weight_decay=0.1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    FusedAdam's third argument is bias_correction, and its weight decay is 0, AdamW's 0.01. fused=True is never
    added: after a skipped step a fused optimizer leaves gradients scaled, and whoever reads them then would see
    that.

    Safe: FusedAdam, and FusedSGD with set_grad_none=True, where the file shows float32 parameters: it calls
    amp.initialize with opt_level O0, O1 or O2, and says nothing of half. State dicts get torch's layout (a step
    count per parameter), so checkpoints from before are converted with `python -m amp_migrate.convert`.

    Review: where it isn't shown, since Apex's compute in float32 for half parameters; FusedSGD without
    set_grad_none, whose zero_grad() zeroed gradients instead of setting them to None; FusedAdagrad, whose state
    torch makes at once.

    Stays on the drop-in: bias_correction=False, wd_after_momentum, adagrad_w_mode, capturable and master_weights;
    computed values of these; set_grad_none=False; `**options`; subclasses, type checks and classes that are handed
    on, and with them the other uses of that class in the file; torch before 2.0; FusedLAMB and FusedNovoGrad, which
    torch lacks.
    """
    yield from reports_of(source, "AMP203")
