"""The options of the command as a table, which both the command line and ``pyproject.toml`` are read by."""

from __future__ import annotations

import argparse
import enum
import re
from dataclasses import dataclass
from typing import Any, Callable, Tuple

from amp_migrate.codemods.findings import Level
from amp_migrate.codemods.target import BFLOAT16, FLOAT16, NATIVE, SHIM, Version

Codes = Tuple[str, ...]


class Takes(enum.Enum):
    """What an option takes, which is also the type that it has in ``pyproject.toml``."""

    FLAG = "true or false"
    TEXT = "a string"
    NUMBER = "a whole number"
    LIST = "a list of strings"


@dataclass(frozen=True)
class Option:
    """One long option.

    ``convert`` makes the value from text, and raises ArgumentTypeError for what it can't take. ``in_file``: whether
    ``pyproject.toml`` may set it. That file comes with the project, so it may not say where else to write, nor that
    uncommitted changes don't matter.
    """

    group: str
    name: str
    takes: Takes
    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    convert: Callable[[str], Any] = str
    in_file: bool = True

    @property
    def field(self) -> str:
        """The name of the attribute of :class:`Options`."""
        return self.name.replace("-", "_")


@dataclass(frozen=True)
class Options:
    """The value of every option, and the paths."""

    paths: tuple[str, ...] = ()
    diff: bool = False
    check: bool = False
    force: bool = False
    strict: bool = False
    to: str = NATIVE
    level: Level = Level.SAFE
    torch: Version = (2, 3)
    device_type: str = "cuda"
    dtype: str = FLOAT16
    autocast_eval: bool = False
    keep_old_checkpoints: bool = False
    guard_scheduler: bool = False
    select: Codes = ()
    ignore: Codes = ()
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    no_gitignore: bool = False
    stdin_filename: str | None = None
    jobs: int | None = None
    format: str = "text"
    output: str | None = None


def _version(text: str) -> Version:
    found = re.fullmatch(r"(\d+)\.(\d+)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"'{text}' isn't a version of the form X.Y, such as 2.3")
    return int(found.group(1)), int(found.group(2))


def _device_type(text: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", text):
        raise argparse.ArgumentTypeError(f"'{text}' isn't a device type; write cuda, cpu, xpu, mps (without an index)")
    return text


def _codes(text: str) -> Codes:
    codes = tuple(filter(None, (code.strip().upper() for code in text.split(","))))
    if not codes:
        raise argparse.ArgumentTypeError("no code is given; write one, such as AMP001, or how some begin")
    return codes


def _jobs(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' isn't a number of processes; write 1 or more")
    return int(text)


_WRITING = "what to do with the result"
_TARGET = "what to rewrite to"
_RULES = "which rules"
_FILES = "which files"
_REPORT = "the report"

OPTIONS = (
    Option(_WRITING, "diff", Takes.FLAG, "print a unified diff and write nothing"),
    Option(_WRITING, "check", Takes.FLAG, "only say what would change, and write nothing"),
    Option(_WRITING, "force", Takes.FLAG, "write even to files with uncommitted changes", in_file=False),
    Option(_WRITING, "strict", Takes.FLAG, "exit with 1 if places are left on the drop-in or for a person"),
    Option(
        _TARGET,
        "to",
        Takes.TEXT,
        "native (default): torch's own AMP, and the drop-in where that can't be shown to train the same; "
        "shim: only imports change, to the drop-in",
        choices=(NATIVE, SHIM),
    ),
    Option(
        _TARGET,
        "level",
        Takes.TEXT,
        "safe (default), or review: also apply what changes numerics or defaults",
        choices=(Level.SAFE.value, Level.REVIEW.value),
        convert=Level,
    ),
    Option(
        _TARGET, "torch", Takes.TEXT, "the oldest torch that the result must run on (default: 2.3)", "X.Y", (), _version
    ),
    Option(
        _TARGET,
        "device-type",
        Takes.TEXT,
        "cuda (default), cpu, xpu, mps, or another: for autocast",
        "TYPE",
        (),
        _device_type,
    ),
    Option(
        _TARGET,
        "dtype",
        Takes.TEXT,
        "float16 (default), or bfloat16, which needs no loss scaler",
        choices=(FLOAT16, BFLOAT16),
    ),
    Option(_TARGET, "autocast-eval", Takes.FLAG, "put evaluation under autocast too, as it was under Apex"),
    Option(_TARGET, "keep-old-checkpoints", Takes.FLAG, "keep loading checkpoints that hold Apex's state"),
    Option(_TARGET, "guard-scheduler", Takes.FLAG, "don't advance a learning-rate schedule on a skipped step"),
    Option(
        _RULES,
        "select",
        Takes.LIST,
        "only these rules: codes, or how they begin, with commas between",
        "CODES",
        (),
        _codes,
    ),
    Option(_RULES, "ignore", Takes.LIST, "not these rules", "CODES", (), _codes),
    Option(_FILES, "exclude", Takes.LIST, "leave out what matches, as in a .gitignore", "GLOB"),
    Option(_FILES, "include", Takes.LIST, "look at what matches, not at *.py *.pyw *.pyi", "GLOB"),
    Option(_FILES, "no-gitignore", Takes.FLAG, "look at files that git ignores, too"),
    Option(
        _FILES,
        "stdin-filename",
        Takes.TEXT,
        "the name of what is read from stdin, for messages",
        "PATH",
        in_file=False,
    ),
    Option(_FILES, "jobs", Takes.NUMBER, "at most this many processes (default: one per processor)", "N", (), _jobs),
    Option(
        _REPORT,
        "format",
        Takes.TEXT,
        "text (default), json, or github: annotations of a pull request",
        choices=("text", "json", "github"),
    ),
    Option(_REPORT, "output", Takes.TEXT, "write the report to this file", "FILE", in_file=False),
)
