"""Command-line options that a file defines with argparse."""

from __future__ import annotations

from typing import Iterator

import libcst as cst

from ..tree import walk
from .signatures import keyword_argument


def option_calls(module: cst.Module, destination: str) -> Iterator[cst.Call]:
    """Yield the ``add_argument`` calls that set ``args.<destination>``."""
    for call in walk(module):
        if (
            isinstance(call, cst.Call)
            and isinstance(call.func, cst.Attribute)
            and call.func.attr.value == "add_argument"
        ) and destination_of(call) == destination:
            yield call


def destination_of(call: cst.Call) -> str:
    """Return the attribute that an option is stored in: ``dest=``, or its first long name."""
    explicit = text_of(keyword_argument(call, "dest"))
    if explicit is not None:
        return explicit
    options = [text_of(arg.value) or "" for arg in call.args if arg.keyword is None]
    names = [each for each in options if each.startswith("--")] or options
    return names[0].lstrip("-").replace("-", "_") if names else ""


def text_of(node: cst.BaseExpression | None) -> str | None:
    """Return the value of a string literal; None for anything else."""
    if not isinstance(node, cst.SimpleString):
        return None
    value = node.evaluated_value
    return value if isinstance(value, str) else None
