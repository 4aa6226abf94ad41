"""Which rules a run wants."""

from __future__ import annotations

from typing import Sequence

from amp_migrate.codemods.findings import Level
from amp_migrate.codemods.registry import Rule, all_rules

#: how the codes begin of the rules that make a file native together, each a part of it
_PARTS_OF_NATIVE = ("AMP1", "AMP2")


def chosen_rules(select: Sequence[str], ignore: Sequence[str]) -> tuple[Rule, ...]:
    """Return the rules that ``select`` names (nothing: all of them) without those that ``ignore`` names.

    Both hold codes or how codes begin. Where both fit, the longer one decides, and ``ignore`` if they are equally long:
    ``--select AMP101 --ignore AMP1`` runs AMP101.
    """
    return tuple(rule for rule in all_rules() if _is_chosen(rule.code, select, ignore))


def _is_chosen(code: str, select: Sequence[str], ignore: Sequence[str]) -> bool:
    selected = _longest(code, select) if select else 0
    return selected > _longest(code, ignore)


def _longest(code: str, beginnings: Sequence[str]) -> int:
    """Return the length of the longest beginning that fits, -1 if none does."""
    return max((len(each) for each in beginnings if code.startswith(each.upper())), default=-1)


def unknown_codes(beginnings: Sequence[str]) -> list[str]:
    """Return those that no rule's code begins with."""
    codes = [rule.code for rule in all_rules()]
    return [each for each in beginnings if not any(code.startswith(each.upper()) for code in codes)]


def missing_parts(rules: Sequence[Rule]) -> frozenset[str]:
    """Return the codes of rules that aren't in ``rules`` and without which those can't make every file native.

    A loop with a scaler and no autocast, say, would run and train differently.
    """
    run = {rule.code for rule in rules}
    parts = (rule for rule in all_rules() if rule.code.startswith(_PARTS_OF_NATIVE) and rule.level is Level.SAFE)
    return frozenset(rule.code for rule in parts) - run
