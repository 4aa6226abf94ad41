"""The rules. A module called ``rule_*.py`` in this package registers its rules by being imported."""

from __future__ import annotations

import inspect
import pkgutil
from dataclasses import dataclass
from importlib import import_module
from typing import Callable, Iterable

from .edits import Reported
from .findings import Level
from .source_file import SourceFile

Check = Callable[[SourceFile], Iterable[Reported]]


@dataclass(frozen=True)
class Rule:
    """One rule: its code, one line on what it does, how far it can be trusted, its page, and the check itself."""

    code: str
    summary: str
    level: Level
    page: str
    check: Check


_rules: dict[str, Rule] = {}


def rule(code: str, summary: str, level: Level) -> Callable[[Check], Check]:
    """Register the decorated check as a rule. Its docstring is the page that ``--explain`` prints."""

    def register(check: Check) -> Check:
        if code in _rules:
            raise ValueError(f"two rules are called {code}")
        _rules[code] = Rule(code, summary, level, inspect.cleandoc(check.__doc__ or ""), check)
        return check

    return register


def all_rules() -> tuple[Rule, ...]:
    """Return every rule, by code."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(import_module(package).__path__):
        if module.name.startswith("rule_"):
            import_module(f"{package}.{module.name}")
    return tuple(_rules[code] for code in sorted(_rules))


def find_rule(code: str) -> Rule | None:
    """Return the rule called ``code``, however it is capitalised, or None."""
    return next((each for each in all_rules() if each.code == code.upper()), None)


def explain(each: Rule) -> str:
    """Return the page of a rule as text."""
    return f"{each.code}: {each.summary}\nLevel: {each.level.value} ({each.level.meaning}).\n\n{each.page}\n"


def rules_page() -> str:
    """Return the docs page of all rules, as Markdown: the same texts as ``--explain``."""
    made_by = "Made by `python tests/rewrite/make_rules_page.py`; edit the docstrings instead."
    parts = [f"# The rules of the rewriter\n\n{made_by}\n"]
    for each in all_rules():
        parts.append(f"## {each.code}: {each.summary}\n\nLevel: {each.level.value} ({each.level.meaning}).\n")
        parts.append(f"```text\n{each.page.rstrip()}\n```\n")
    return "\n".join(parts)
