"""AMP204: apex.normalization."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .library_plan import reports_of
from .registry import rule
from .source_file import SourceFile


@rule("AMP204", "Apex's fused normalization becomes torch's", Level.REVIEW)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: torch.nn.LayerNorm is the same layer with the same state dict, and needs no extension.

    Before:
        self.norm = FusedLayerNorm(hidden, eps=1e-12)
        self.norm = FusedRMSNorm(hidden)

    After:
        self.norm = torch.nn.LayerNorm(hidden, eps=1e-12)
        self.norm = torch.nn.RMSNorm(hidden, eps=1e-5)

    Review: always. In float32 the results are the same. Under CUDA's autocast torch's layers return float32, where
    Apex's returned the dtype of their input or of autocast, so what follows computes more exactly and takes more
    memory; a tensor of that dtype may also meet one of another where they met as equals before. eps is written out
    where the defaults differ: 1e-6 for Apex's functions, none for torch.nn.RMSNorm (torch 2.4 and newer).

    Stays on the drop-in: the Mixed layers, which take an input of another dtype than their weight's; the functions,
    unless the shape is a tuple or list; subclasses, type checks that don't name torch's class too, and classes that
    are handed on.
    """
    yield from reports_of(source, "AMP204")
