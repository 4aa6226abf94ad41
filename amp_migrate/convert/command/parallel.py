"""Several files at a time, each in a process of its own."""

from __future__ import annotations

from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Iterator, Mapping, Sequence

from ..notes import Report
from .outcome import Outcome, Result
from .tasks import Task
from .working import work


def in_processes(processes: int, tasks: Sequence[Task], options: Mapping[str, Any], dry_run: bool) -> Iterator[Outcome]:
    """Yield what becomes of each task, in order. A process that the system kills fails what isn't done by then."""
    with ProcessPoolExecutor(processes) as pool:
        futures = [pool.submit(work, task, options, dry_run) for task in tasks]
        try:
            for task, future in zip(tasks, futures):
                yield _outcome(task, future)
        finally:
            for future in futures:
                future.cancel()


def _outcome(task: Task, future: Future[Outcome]) -> Outcome:
    try:
        return future.result()
    except BrokenProcessPool:
        text = "a process was killed before this was done, most likely for its memory; try --jobs 1"
        return Outcome(task, Result.FAILED, Report(), error=text)
