"""AMP205: functions of apex.fp16_utils."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .library_plan import reports_of
from .registry import rule
from .source_file import SourceFile


@rule("AMP205", "Functions of apex.fp16_utils become torch's", Level.SAFE)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: some of them are torch's own under another name.

    Before:
        apex.fp16_utils.clip_grad_norm(parameters, 1.0)
        total += to_python_float(loss.detach())

    After:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        total += loss.detach().item()

    Safe: the first is torch's function itself. to_python_float takes sequences as well, so it changes only where
    what it gets is surely a tensor.

    Half models, master weights and FP16_Optimizer belong to a training loop and aren't this rule's.
    """
    yield from reports_of(source, "AMP205")
