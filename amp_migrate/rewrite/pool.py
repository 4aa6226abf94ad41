"""The same work for many files in several processes. Results come in the order of the files."""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Callable, Iterator, Sequence

from amp_migrate.rewrite.results import FileResult

Work = Callable[[str], FileResult]


def in_order(
    work: Work, paths: Sequence[str], processes: int, failed: Callable[[str, str], FileResult]
) -> Iterator[FileResult]:
    """Yield ``work(path)`` for each path. ``work`` must be picklable; it may not print or write.

    If the process that works on a file ends (out of memory, a crash in a parser), the file's result is
    ``failed(path, reason)``, and the others are still done.
    """
    with _executor(processes) as executor:
        futures = [executor.submit(work, path) for path in paths]
        try:
            for path, future in zip(paths, futures):
                try:
                    yield future.result()
                except BrokenProcessPool:
                    yield _alone(work, path, failed)
        finally:
            for future in futures:
                future.cancel()  # after an interrupt, leaving the block would wait for all of them


def _alone(work: Work, path: str, failed: Callable[[str, str], FileResult]) -> FileResult:
    """A process that ended takes the others' files with it; this finds out whose fault it was."""
    try:
        with _executor(1) as executor:
            return executor.submit(work, path).result()
    except BrokenProcessPool:
        return failed(path, "the process that rewrote it ended: out of memory, or a crash in a parser")


def _executor(processes: int) -> ProcessPoolExecutor:
    if sys.platform != "linux":
        return ProcessPoolExecutor(processes, initializer=_leave_interrupts_to_the_parent)
    # loaded before the fork, it is loaded once for all
    import amp_migrate.rewrite.parsed  # noqa: F401

    context = multiprocessing.get_context("fork")
    return ProcessPoolExecutor(processes, mp_context=context, initializer=_leave_interrupts_to_the_parent)


def _leave_interrupts_to_the_parent() -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
