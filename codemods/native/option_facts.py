"""What flows into ``opt_level=``, ``loss_scale=`` and ``enabled=``, as small records."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Iterator

import libcst as cst

from .defaults import Defaults, looked_up
from .index import code_of
from .options import option_calls, text_of
from .sites import Initialize, initialize_keyword
from .solve import Solved

_KEYWORDS = ("opt_level", "loss_scale", "enabled")


class Origin(enum.Enum):
    """Where a value comes from."""

    LITERAL = "literal"
    OPTION = "command-line option"
    PARAMETER = "parameter"
    KEY = "key of a configuration"
    FIELD = "attribute"
    COMPUTED = "computed"


@dataclass(frozen=True)
class OptionFact:
    """One value that ``amp.initialize`` gets.

    Args:
        keyword: ``opt_level``, ``loss_scale`` or ``enabled``.
        expression: as it is spelled at the call.
        origin: where it comes from.
        name: the option, parameter, key or attribute; "" for what has none.
        default: the value if nobody chooses another one, as text; None if the file doesn't show it.
    """

    keyword: str
    expression: str
    origin: Origin
    name: str
    default: str | None


def option_facts(site: Initialize, solved: Solved) -> Iterator[OptionFact]:
    """Yield the facts of one call of ``amp.initialize``."""
    for keyword in _KEYWORDS:
        node = initialize_keyword(site, keyword)
        if node is not None:
            origin, name = _origin(node, solved)
            yield OptionFact(keyword, code_of(node), origin, name, Defaults(solved).text(node))


def _origin(node: cst.BaseExpression, solved: Solved) -> tuple[Origin, str]:
    if text_of(node) is not None or isinstance(node, cst.BaseNumber) or code_of(node) in ("True", "False"):
        return Origin.LITERAL, ""
    if isinstance(node, cst.Attribute):
        is_option = any(True for _ in option_calls(solved.index.module, node.attr.value))
        return (Origin.OPTION if is_option else Origin.FIELD), node.attr.value
    if isinstance(node, cst.Name):
        binders = solved.names.binders(node.value, solved.index.scope(node))
        is_parameter = any(isinstance(each, cst.Param) for each in binders)
        return (Origin.PARAMETER if is_parameter else Origin.COMPUTED), node.value
    key, _ = looked_up(node)
    return (Origin.COMPUTED, "") if key is None else (Origin.KEY, key)
