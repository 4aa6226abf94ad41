"""Which argument of a call fills which parameter."""

from __future__ import annotations

from typing import Iterator, Sequence

import libcst as cst


def call_argument(call: cst.Call, place: int, keyword: str) -> cst.BaseExpression | None:
    """Return the argument given by position ``place`` or as ``keyword``; None without one."""
    for number, arg in enumerate(call.args):
        if arg.star:
            if number <= place:
                return None
            continue
        if arg.keyword is not None:
            if arg.keyword.value == keyword:
                return arg.value
        elif number == place:
            return arg.value
    return None


def keyword_argument(call: cst.Call, keyword: str) -> cst.BaseExpression | None:
    """Return the argument given as ``keyword``; None without one."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == keyword:
            return arg.value
    return None


def has_star(call: cst.Call) -> bool:
    """Return whether the call passes ``*args`` or ``**kwargs``."""
    return any(arg.star for arg in call.args)


def bound_arguments(
    function: cst.FunctionDef, args: Sequence[cst.Arg], bound: bool
) -> Iterator[tuple[cst.Param, cst.BaseExpression]]:
    """Yield (parameter, argument) for a call of ``function``; ``bound`` if its first parameter is filled already."""
    parameters = function.params
    positional = [*parameters.posonly_params, *parameters.params][1 if bound else 0 :]
    by_name = {each.name.value: each for each in [*positional, *parameters.kwonly_params]}
    place = 0
    for arg in args:
        if arg.star:
            place = len(positional)  # which ones it fills isn't known
        elif arg.keyword is not None:
            if arg.keyword.value in by_name:
                yield by_name[arg.keyword.value], arg.value
        elif place < len(positional):
            yield positional[place], arg.value
            place += 1
