"""A progress bar for runs that take a while. rich is imported only once there is something to show."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

AFTER_SECONDS = 1.0
_BETWEEN_SECONDS = 0.1


class ProgressBar:
    """Call it with (files done, files in all) as often as you like; it shows itself on a terminal after a second."""

    def __init__(self, stream: TextIO, after: float = AFTER_SECONDS, what: str = "Rewriting") -> None:
        self._what = what
        self._stream = stream
        self._next = time.monotonic() + after
        self._bar: tuple[Progress, TaskID] | None = None
        self._is_wanted = stream.isatty()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._is_wanted or now < self._next:
            return
        self._next = now + _BETWEEN_SECONDS
        progress, task = self._bar or self._started()
        progress.update(task, completed=done, total=total, refresh=True)

    def _started(self) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.progress import Progress

        # no thread of rich's own: processes may yet be forked
        progress = Progress(console=Console(file=self._stream), transient=True, auto_refresh=False)
        progress.start()
        self._bar = progress, progress.add_task(self._what)
        return self._bar

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar[0].stop()
            self._bar = None
