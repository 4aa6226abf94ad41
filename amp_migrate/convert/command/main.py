"""``python -m amp_migrate.convert``."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Iterator, Sequence

from .arguments import Command, parse

if TYPE_CHECKING:
    from .outcome import Outcome
    from .tasks import Task

OK, WRONG = 0, 2
#: what a shell expects of a program that Ctrl-C ended
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that has no letter for a file's name is no reason to stop
            stream.reconfigure(errors="backslashreplace")
    command = parse(arguments)
    try:
        if command.inspect:
            from .inspecting import inspect_files

            return inspect_files(command.sources, command.json)
        return _convert(command)
    except KeyboardInterrupt:
        print("amp_migrate.convert: interrupted; files that were reported are done, others untouched", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # whoever read the output has gone, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return WRONG


def _convert(command: Command) -> int:
    from ..errors import CannotConvert
    from ..options import Options
    from .said import printable
    from .tasks import tasks_of

    try:
        Options(**command.options)
        tasks = tasks_of(command)
        if not tasks:
            raise CannotConvert(f"{', '.join(map(str, command.sources))}: there is no file in it")
    except (CannotConvert, OSError) as error:
        print(printable(f"amp_migrate.convert: {error}"), file=sys.stderr)
        if command.json:
            _print_json(command, [], str(error))
        return WRONG
    return _report(command, tasks)


def _report(command: Command, tasks: Sequence[Task]) -> int:
    from .outcome import Result
    from .said import printable
    from .text import lines_of, summary

    outcomes: list[Outcome] = []
    for outcome in _outcomes(command, tasks):
        outcomes.append(outcome)
        failed = outcome.result is Result.FAILED
        if failed or not command.json:
            for line in lines_of(outcome, command.dry_run):
                print(printable(line), file=sys.stderr if failed else sys.stdout, flush=True)
    if command.json:
        _print_json(command, outcomes, None)
    else:
        total = summary(outcomes)
        if total is not None:
            print(total)
    return WRONG if any(each.result is Result.FAILED for each in outcomes) else OK


def _print_json(command: Command, outcomes: Sequence[Outcome], error: str | None) -> None:
    files = [each.as_dict() for each in outcomes]
    print(json.dumps({"dry_run": command.dry_run, "error": error, "files": files}, indent=2))


def _outcomes(command: Command, tasks: Sequence[Task]) -> Iterator[Outcome]:
    """Yield what becomes of each task, in order; several files are worked on at a time."""
    from ...progress import ProgressBar
    from .parallel import in_processes
    from .working import work

    bar = ProgressBar(sys.stderr, what="Converting")
    processes = min(command.jobs or _processors(), len(tasks))
    try:
        results: Iterator[Outcome]
        if processes == 1:
            results = (work(task, command.options, command.dry_run) for task in tasks)
        else:
            results = in_processes(processes, tasks, command.options, command.dry_run)
        bar(0, len(tasks))
        for done, outcome in enumerate(results, 1):
            yield outcome
            bar(done, len(tasks))
    finally:
        bar.close()


def _processors() -> int:
    """Return how many processors this process may use: a batch system gives it fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
