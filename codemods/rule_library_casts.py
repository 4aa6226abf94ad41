"""AMP207: amp's casts by hand."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .library_plan import reports_of
from .registry import rule
from .source_file import SourceFile


@rule("AMP207", "amp's blocks without casts become torch.autocast", Level.SAFE)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: what amp.initialize switched on for the whole process, torch.autocast switches on for a block.

    Before:
        with amp.disable_casts(): ...
        amp.register_half_function(torch, "einsum")

    After:
        with torch.autocast("cuda", enabled=False): ...

    Safe: the first is what the drop-in does itself. CUDA's autocast has einsum on its own list; on a CPU it hasn't,
    and the call stays.

    Review, for the static forward of a torch.autograd.Function:
        @staticmethod
        @amp.float_function
        def forward(ctx, x): ...
    becomes torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32), and backward gets custom_bwd. Both then
    run without autocast, under Apex only their arguments were cast.

    Stays on the drop-in: other decorated functions and other registered ones, because torch has nothing that casts
    the arguments and leaves autocast on. They cast only after amp.initialize of the drop-in. So a training loop
    that reaches them stays there too.
    """
    yield from reports_of(source, "AMP207")
