"""What a run may take of the machine: how many processes, and how often garbage is collected."""

from __future__ import annotations

import contextlib
import gc
import os
from typing import Iterator

#: a process costs about as much as this many files with Apex
FILES_PER_PROCESS = 8
_MOST = 61  # all that Windows can wait for


def default_jobs() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processes_for(files: int, jobs: int) -> int:
    """Return how many processes are worth it for ``files`` that contain Apex, if ``jobs`` are allowed."""
    return max(1, min(jobs, files // FILES_PER_PROCESS, _MOST))


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage rarely meanwhile: syntax trees are many objects and few cycles, and looking costs a tenth."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
