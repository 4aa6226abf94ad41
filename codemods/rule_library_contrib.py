"""AMP206: apex.contrib and small packages."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .library_plan import reports_of
from .registry import rule
from .source_file import SourceFile


@rule("AMP206", "Parts of apex.contrib become torch's", Level.SAFE)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: torch's clip_grad_norm_ works on lists of tensors too, which was the point of Apex's.

    Before:
        from apex.contrib.clip_grad import clip_grad_norm_
        clip_grad_norm_(model.parameters(), 1.0)

    After:
        from apex.contrib.clip_grad import clip_grad_norm_
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    The import goes when nothing needs it any more.

    Safe: the signature and the result are the same.

    Stays on the drop-in, and is named: the losses and norms of apex.contrib, whose results have another dtype under
    autocast than torch's; apex.mlp and apex.fused_dense, whose parameters have other names or starting values;
    apex.multi_tensor_apply.
    """
    yield from reports_of(source, "AMP206")
