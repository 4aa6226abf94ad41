"""Arguments and parameters added so that they look like those that are there."""

from __future__ import annotations

from typing import Sequence, Union

import libcst as cst

Item = Union[cst.Arg, cst.Param, cst.Element, cst.Decorator]


def with_item(node: cst.CSTNode, item: Item) -> cst.CSTNode:
    """Return ``node`` with a further keyword argument, keyword-only parameter, element or decorator."""
    if isinstance(node, cst.Call):
        assert isinstance(item, cst.Arg)
        return _with_argument(node, item)
    if isinstance(node, cst.Tuple):
        assert isinstance(item, cst.Element)
        return _with_element(node, item)
    if isinstance(node, cst.FunctionDef):
        return node.with_changes(decorators=[*node.decorators, item])
    assert isinstance(node, cst.Parameters) and isinstance(item, cst.Param)
    return _with_parameter(node, item)


def _with_argument(call: cst.Call, item: cst.Arg) -> cst.Call:
    if not call.args:
        return call.with_changes(args=[item])
    *rest, last = call.args
    stars = [arg for arg in call.args if arg.star == "**"]
    separator = _separator(rest, call.whitespace_before_args)
    if stars and last in stars:
        new = item.with_changes(comma=_separator(rest, call.whitespace_before_args))
        return call.with_changes(args=[*rest, new, last])
    return call.with_changes(args=[*rest, last.with_changes(comma=separator), item.with_changes(comma=last.comma)])


def _with_element(node: cst.Tuple, item: cst.Element) -> cst.Tuple:
    *rest, last = node.elements
    separator = _separator(rest, None)  # type: ignore[arg-type]
    return node.with_changes(elements=[*rest, last.with_changes(comma=separator), item.with_changes(comma=last.comma)])


def _with_parameter(params: cst.Parameters, item: cst.Param) -> cst.Parameters:
    if params.star_kwarg is not None:
        item = item.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
    if params.kwonly_params or isinstance(params.star_arg, cst.Param):
        return _after_keyword_only(params, item)
    positional = list(params.params)
    separator = (
        _separator(positional[:-1], None) if positional else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    )
    star = cst.ParamStar(comma=separator)
    if not positional:
        return params.with_changes(star_arg=star, kwonly_params=[item])
    last = positional[-1]
    if params.star_kwarg is None:
        item = item.with_changes(comma=last.comma)
    positional[-1] = last.with_changes(comma=separator)
    return params.with_changes(params=positional, star_arg=star, kwonly_params=[item])


def _after_keyword_only(params: cst.Parameters, item: cst.Param) -> cst.Parameters:
    existing = list(params.kwonly_params)
    if not existing:
        return params.with_changes(kwonly_params=[item])
    last = existing[-1]
    separator = _separator(existing[:-1], None)
    if params.star_kwarg is None:
        item = item.with_changes(comma=last.comma)
    return params.with_changes(kwonly_params=[*existing[:-1], last.with_changes(comma=separator), item])


def _separator(before: Sequence[cst.Arg | cst.Param], opening: object) -> cst.Comma:
    """Return the comma that stands between the items that are there."""
    for each in reversed(before):
        if isinstance(each.comma, cst.Comma):
            return each.comma
    if isinstance(opening, cst.ParenthesizedWhitespace):
        return cst.Comma(whitespace_after=opening)
    return cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
