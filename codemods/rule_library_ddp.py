"""AMP201: apex.parallel.DistributedDataParallel."""

from __future__ import annotations

from typing import Iterator

from .edits import Reported
from .findings import Level
from .library_plan import reports_of
from .registry import rule
from .source_file import SourceFile


@rule("AMP201", "Apex's DistributedDataParallel becomes torch's", Level.REVIEW)
def check(source: SourceFile) -> Iterator[Reported]:
    """
    Why: torch's class averages gradients as Apex's did, and is maintained.

    Before:
        model = apex.parallel.DistributedDataParallel(model, message_size=2**25, delay_allreduce=True)
        if isinstance(model, apex.parallel.DistributedDataParallel): ...

    After:
        model = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True, broadcast_buffers=False)
        if isinstance(model, torch.nn.parallel.DistributedDataParallel): ...

    Apex never exchanged buffers, hence broadcast_buffers=False: torch 2.13 and newer warn that it is deprecated,
    but what they have instead exchanges them once, at the start. device_ids are left out: neither class then moves
    inputs. Arguments that only chose how Apex communicated go.

    Review: always. Without delay_allreduce torch raises if a parameter gets no gradient; Apex found out in the first
    backward. A model of which nothing is trained is refused. Type checks change with it: the drop-in's class is a
    subclass of torch's, so isinstance holds whichever file makes the model. `type(model) is ...`, and a class that
    another file hands on, have to be changed by a person.

    Stays on the drop-in: gradient_average, gradient_predivide_factor and allreduce_always_fp32, whose sums round or
    divide otherwise; computed values of delay_allreduce; subclasses; a class that is handed on; a file that asks
    the model for what torch's lacks (disable_allreduce, …); and everything for torch before 2.1, which copies
    buffers at the start.
    """
    yield from reports_of(source, "AMP201")
