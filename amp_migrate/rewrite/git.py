"""Asking git whether files have changes that a rewrite would bury."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from typing import Sequence

_BATCH = 200  # paths on one command line
_NAMED = 20  # files that a command for the user still names


@dataclass(frozen=True)
class GitState:
    """``dirty``: files with uncommitted changes, or that git doesn't know. ``tracked``: files that git can restore.

    ``problem`` is git's own message if it refused to answer.
    """

    dirty: tuple[str, ...] = ()
    tracked: tuple[str, ...] = ()
    problem: str = ""


def git_state(paths: Sequence[str]) -> GitState:
    """Return what git says of ``paths``. One outside any checkout, or ignored by git, is neither."""
    by_checkout: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        folder = checkout_of(os.path.dirname(os.path.realpath(path)))
        if folder:
            by_checkout[folder].append(path)
    dirty: set[str] = set()
    tracked: set[str] = set()
    for folder, members in by_checkout.items():
        for start in range(0, len(members), _BATCH):
            batch = {_inside(folder, path): path for path in members[start : start + _BATCH]}
            try:
                changed, known = _ask(folder, list(batch))
            except GitRefused as error:
                return GitState(problem=str(error))
            dirty.update(batch[name] for name in changed if name in batch)
            tracked.update(batch[name] for name in known if name in batch)
    return GitState(tuple(p for p in paths if p in dirty), tuple(p for p in paths if p in tracked))


def checkout_of(folder: str) -> str:
    """Return the nearest folder, from ``folder`` upwards, that has a ``.git``; ``""`` if none has."""
    while True:
        if os.path.exists(os.path.join(folder, ".git")):
            return folder
        above = os.path.dirname(folder)
        if above == folder:
            return ""
        folder = above


class GitRefused(Exception):
    """There is a checkout, but git doesn't answer."""


def _inside(folder: str, path: str) -> str:
    return os.path.relpath(os.path.realpath(path), folder).replace(os.sep, "/")


def _ask(folder: str, names: list[str]) -> tuple[list[str], list[str]]:
    """Return (changed or unknown to git, tracked), as paths inside ``folder``."""
    status = _git(folder, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--", *names)
    known = _git(folder, "ls-files", "-z", "--", *names)
    return [entry[3:] for entry in status.split("\0") if entry], [entry for entry in known.split("\0") if entry]


def _git(folder: str, *arguments: str) -> str:
    # no optional locks: asking must not touch the index; literal: a path is never a pattern
    environment = {**os.environ, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_LITERAL_PATHSPECS": "1"}
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, env=environment, check=False)
    except OSError:
        return ""  # no git here, so nobody relies on it
    if done.returncode == 0:
        return os.fsdecode(done.stdout)
    message = os.fsdecode(done.stderr).strip()
    if "not a git repository" in message or "not in a git directory" in message:
        return ""  # a folder called .git isn't always one
    raise GitRefused(message.splitlines()[0] if message else "git gave no reason")


def undo_commands(paths: Sequence[str]) -> dict[str, str]:
    """Return the commands that show and undo changes of tracked ``paths``, to be typed in the working directory."""
    if not paths:
        return {}
    top = checkout_of(os.path.dirname(os.path.realpath(paths[0])))
    here = os.path.realpath(os.curdir)
    is_inside = os.path.commonpath([here, top]) == top
    where = "" if is_inside else f" -C {shlex.quote(top)}"
    names = [shlex.quote(path if is_inside else os.path.abspath(path)) for path in paths]
    files = " ".join(names) if len(names) <= _NAMED else "FILE (the files named above)"
    return {"see the changes": f"git{where} diff -- {files}", "undo them": f"git{where} checkout -- {files}"}
