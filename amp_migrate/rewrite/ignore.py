"""``.gitignore`` files at every level, as one growing list of patterns, the last match deciding as in git."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Iterable

from amp_migrate.rewrite.git import checkout_of

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


@dataclass(frozen=True)
class IgnoreRules:
    """The patterns that hold in one folder. ``base`` is the folder that the patterns are relative to."""

    base: str
    patterns: tuple[str, ...] = ()
    spec: GitIgnoreSpec | None = None

    def ignores(self, path: str, is_folder: bool) -> bool:
        """Return whether ``path`` is ignored, given that the folder it is in isn't."""
        if self.spec is None:
            return False
        return self.spec.match_file(_relative(path, self.base) + ("/" if is_folder else ""))

    def within(self, folder: str) -> IgnoreRules:
        """Return the rules that hold in ``folder``: these, and those of its own ``.gitignore``."""
        return self._and_those_of(os.path.join(folder, ".gitignore"), folder)

    def _and_those_of(self, file: str, folder: str) -> IgnoreRules:
        lines = _lines(file)
        if not lines:
            return self
        prefix = _relative(folder, self.base)
        patterns = (*self.patterns, *filter(None, (_from_base(line, prefix) for line in lines)))
        return IgnoreRules(self.base, patterns, glob_spec(patterns))


def ignore_rules_for(root: str) -> IgnoreRules:
    """Return the rules that hold in the folder ``root``, those of the checkout around it included.

    If they ignore ``root`` itself, only its own count: whoever names a folder wants it looked at.
    """
    root = os.path.realpath(root)
    base = checkout_of(root) or root
    rules = IgnoreRules(base)._and_those_of(os.path.join(base, ".git", "info", "exclude"), base)
    folder = base
    for part in filter(None, _relative(root, base).split("/")):
        rules = rules.within(folder)
        folder = os.path.join(folder, part)
        if rules.ignores(folder, is_folder=True):
            return IgnoreRules(root).within(root)
    return rules.within(root)


def glob_spec(patterns: Iterable[str]) -> GitIgnoreSpec:
    """Return a matcher for patterns as ``.gitignore`` has them."""
    from pathspec import GitIgnoreSpec  # 40 ms, so only where there is a pattern

    return GitIgnoreSpec.from_lines(patterns)


def _relative(path: str, base: str) -> str:
    inside = os.path.relpath(path, base).replace(os.sep, "/")
    return "" if inside == "." else inside


def _lines(file: str) -> list[str]:
    try:
        with open(file, encoding="utf-8", errors="surrogateescape") as opened:
            return opened.read().splitlines()
    except OSError:
        return []


def _from_base(line: str, prefix: str) -> str:
    """Return the pattern ``line`` of the ``.gitignore`` in folder ``prefix`` as one of the base folder's."""
    if not line.strip() or line.startswith("#"):
        return ""
    if not prefix:
        return line
    negation, pattern = ("!", line[1:]) if line.startswith("!") else ("", line)
    folder = re.sub(r"([\\*?\[\]!# ])", r"\\\1", prefix)
    if "/" in pattern.rstrip().rstrip("/"):
        return f"{negation}/{folder}/{pattern.lstrip('/')}"
    return f"{negation}/{folder}/**/{pattern}"
