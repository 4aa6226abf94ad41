"""Which files to look at."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import Iterator, Sequence

from amp_migrate.rewrite.ignore import IgnoreRules, glob_spec, ignore_rules_for

SUFFIXES = (".py", ".pyw", ".pyi")
#: never sources, so not worth a word
_NO_SOURCES = frozenset({".git", ".hg", ".svn", "__pycache__"})
EXCLUDED_FOLDERS = _NO_SOURCES | {
    *(".venv", "venv", ".tox", ".nox", "site-packages"),
    *("node_modules", "build", "dist", ".eggs"),
}


@dataclass(frozen=True)
class Selection:
    """What the user wants looked at in folders. Files named on the command line are always looked at.

    ``include`` replaces the usual suffixes; both lists hold patterns as ``.gitignore`` has them.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    gitignore: bool = True


#: no patterns, and ``.gitignore`` obeyed
DEFAULT_SELECTION = Selection()


@dataclass
class Found:
    """What a search found, in order: files, paths that can't be looked at and why, and how much was left out."""

    files: list[str] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    folders_left_out: int = 0
    files_left_out: int = 0


def find_files(paths: Sequence[str], selection: Selection = DEFAULT_SELECTION) -> Found:
    """Return the files at and below ``paths``, each once, however many paths lead to it."""
    found = Found()
    search = _Search(found, selection)
    seen: set[str] = set()
    for path in paths:
        for file, real in search.at(path):
            if real not in seen:
                seen.add(real)
                found.files.append(file)
    return found


class _Search:
    def __init__(self, found: Found, selection: Selection) -> None:
        self.found = found
        self.selection = selection
        self.include = glob_spec(selection.include) if selection.include else None
        self.exclude = glob_spec(selection.exclude) if selection.exclude else None

    def at(self, path: str) -> Iterator[tuple[str, str]]:
        """Yield the file ``path``, or the files below the folder ``path``: as the user would write it, and in truth."""
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            self.found.problems.append((path, _reason(error)))
            return
        if stat.S_ISDIR(mode):
            yield from self.below(path)
        elif path.endswith(".ipynb"):
            self.found.skipped.append((path, "notebooks aren't rewritten in this version; export it as a script first"))
        elif stat.S_ISREG(mode):
            yield path, os.path.realpath(path)
        else:
            self.found.problems.append((path, "not a regular file"))

    def below(self, root: str) -> Iterator[tuple[str, str]]:
        rules = ignore_rules_for(root) if self.selection.gitignore else IgnoreRules(os.path.realpath(root))
        # the real path goes along because patterns are relative to a folder that may be above the root
        waiting = [(root, os.path.realpath(root), rules)]
        while waiting:
            folder, real, rules = waiting.pop()
            folders = []
            for entry in self.entries(folder):
                path = entry.name if folder == os.curdir else os.path.join(folder, entry.name)
                real_path = os.path.join(real, entry.name)
                if entry.is_symlink():
                    continue  # its target is found where it is, or isn't ours; and links can go in circles
                if entry.is_dir():
                    if self.leaves_out_folder(path, root) or rules.ignores(real_path, is_folder=True):
                        self.found.folders_left_out += entry.name not in _NO_SOURCES
                    else:
                        below = rules.within(real_path) if self.selection.gitignore else rules
                        folders.append((path, real_path, below))
                elif entry.is_file() and self.is_wanted(path, root):
                    if self.is_excluded(path, root, "") or rules.ignores(real_path, is_folder=False):
                        self.found.files_left_out += 1
                    else:
                        yield path, real_path
            waiting.extend(reversed(folders))

    def entries(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            self.found.problems.append((folder, _reason(error)))
            return []

    def is_wanted(self, path: str, root: str) -> bool:
        if self.include is None:
            return path.endswith(SUFFIXES)
        return any(self.include.match_file(form) for form in _forms(path, root))

    def leaves_out_folder(self, path: str, root: str) -> bool:
        if os.path.basename(path) in EXCLUDED_FOLDERS or os.path.exists(os.path.join(path, "pyvenv.cfg")):
            return True
        return self.is_excluded(path, root, "/")

    def is_excluded(self, path: str, root: str, end: str) -> bool:
        return self.exclude is not None and any(self.exclude.match_file(form + end) for form in _forms(path, root))


def _forms(path: str, root: str) -> tuple[str, str]:
    """Return ``path`` as seen from the root, and as the user would write it: a pattern may mean either."""
    seen_from_root = os.path.relpath(path, root)
    return seen_from_root.replace(os.sep, "/"), os.path.normpath(path).replace(os.sep, "/").lstrip("/")


def _reason(error: OSError) -> str:
    return "no such file or folder" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
