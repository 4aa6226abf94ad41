"""Run something in a process of its own that has torch loaded: amp keeps global state, and torch loads slowly."""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

_context: Any = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "amp_migrate.run", "amp_migrate.apex.amp"])


@dataclass(frozen=True)
class Outcome:
    """What a process left: exit code, standard output and error."""

    code: int
    out: str
    err: str


def run_isolated(folder: Path, function: Callable[..., Any], *args: Any, timeout: float = 300) -> Outcome:
    """Call ``function(*args)`` in a fresh process; an int that it returns is the exit code."""
    out, err = folder / "stdout.txt", folder / "stderr.txt"
    process = _context.Process(target=_child, args=(str(out), str(err), function, args))
    process.start()
    process.join(timeout)
    if process.is_alive():
        process.kill()
        process.join()
    return Outcome(process.exitcode, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))


def run_program(folder: Path, *arguments: str) -> Outcome:
    """``amp_migrate.run`` with these arguments."""
    return run_isolated(folder, _run, list(arguments))


def _run(arguments: list[str]) -> int:
    from amp_migrate import run

    return run.main(arguments)


def _child(out: str, err: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    for path, stream in ((out, sys.stdout), (err, sys.stderr)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        stream.flush()
        os.dup2(file, stream.fileno())
    try:
        code = function(*args) or 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1 if error.code else 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code))
