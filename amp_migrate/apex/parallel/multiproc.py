"""Start a program once per GPU: ``python -m apex.parallel.multiproc [--nproc N] main.py ARGS…``.

Each process gets ``--world-size N --rank I`` appended, as Apex's launcher did it; torchrun is today's way. The first
process keeps the terminal, the others write to ``GPU_<rank>.log``. Source: apex/parallel/multiproc.py.
"""

from __future__ import annotations

import os
import subprocess
import sys

import torch


def docstring_hack() -> None:
    """Apex's name; does nothing."""


def number_of_processes(arguments: list[str]) -> int:
    """How many processes to start. Takes a leading ``--nproc N`` out of ``arguments``.

    ``--world-size N`` among the program's own arguments comes first, then ``--nproc N``, the number of GPUs, and where
    there is none, the environment's WORLD_SIZE.

    Raises:
        SystemExit: if nothing says how many.
    """
    wanted = None
    if arguments[:1] == ["--nproc"] and len(arguments) > 1:
        wanted = arguments[1]
        del arguments[:2]
    if "--world-size" in arguments[:-1]:
        wanted = arguments[arguments.index("--world-size") + 1]
    number = int(wanted or torch.cuda.device_count() or os.environ.get("WORLD_SIZE") or 0)
    if number < 1:
        raise SystemExit("multiproc: no GPU here. Say how many processes to start: --nproc N before the program.")
    return number


def arguments_of(rank: int, world_size: int, arguments: list[str]) -> list[str]:
    """The program and its arguments for one process."""
    result = list(arguments)
    for option, value in (("--world-size", world_size), ("--rank", rank)):
        if option in result[:-1]:
            result[result.index(option) + 1] = str(value)
        else:
            result += [option, str(value)]
    return result


def start(rank: int, arguments: list[str]) -> subprocess.Popen[bytes]:
    """Start one process."""
    command = [sys.executable, *arguments]
    if rank == 0:
        return subprocess.Popen(command)
    with open(f"GPU_{rank}.log", "w") as log:
        return subprocess.Popen(command, stdout=log)


def main(arguments: list[str] | None = None) -> int:
    """Start all, wait for all, and return the first exit code that isn't 0 (Apex always returned 0)."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    world_size = number_of_processes(arguments)
    if not arguments:
        raise SystemExit("multiproc: no program. Usage: python -m apex.parallel.multiproc [--nproc N] main.py ARGS…")
    # the programs import apex; absolute, because this module also runs under the name apex.parallel.multiproc
    from amp_migrate.finder import install

    install()
    workers = []
    for rank in range(world_size):
        own = arguments_of(rank, world_size, arguments)
        print(own, flush=True)
        workers.append(start(rank, own))
    codes = [worker.wait() for worker in workers]
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
