"""A call of Apex's as a call of torch's: which argument becomes which, as tables, and what can't be carried over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence, Union

import libcst as cst

from .tree import walk


class _Computed:
    def __repr__(self) -> str:
        return "COMPUTED"


#: the value of an expression that isn't a literal
COMPUTED = _Computed()

_CONSTANTS = {"True": True, "False": False, "None": None}
#: what an argument that is left out may consist of: computing it has no effect that anyone could see
_WITHOUT_EFFECT = (
    cst.Attribute,
    cst.BaseNumber,
    cst.BaseString,
    cst.BaseUnaryOp,
    cst.BaseBinaryOp,
    cst.BinaryOperation,
    cst.Element,
    cst.List,
    cst.Name,
    cst.Tuple,
    cst.UnaryOperation,
)


@dataclass(frozen=True)
class Keep:
    """An argument that torch has too, as ``becomes`` (or by its own name), at ``place`` if it is given by position."""

    name: str
    place: int
    becomes: str = ""


@dataclass(frozen=True)
class Drop:
    """An argument that torch lacks. It is left out if it is one of the literals ``only``; any other value stays."""

    name: str
    only: tuple[object, ...]
    why: str


@dataclass(frozen=True)
class Ignore:
    """An argument that never changes a result. It is left out, whatever it is, if computing it has no effect."""

    name: str


Parameter = Union[Keep, Drop, Ignore]
Signature = Sequence[Parameter]


@dataclass(frozen=True)
class Untranslated:
    """Why a call has no exact form in torch."""

    why: str
    node: cst.CSTNode


def literal(node: cst.BaseExpression) -> object:
    """Return the value of a literal (a number, a string, True, False or None), COMPUTED for anything else."""
    if isinstance(node, cst.Name):
        return _CONSTANTS.get(node.value, COMPUTED)
    if isinstance(node, (cst.Integer, cst.Float, cst.SimpleString)):
        return node.evaluated_value
    return COMPUTED


def argument(call: cst.Call, name: str, place: int) -> cst.Arg | None:
    """Return the argument called ``name``, or the one at ``place``; None if it isn't given (or behind a star)."""
    for position, arg in enumerate(call.args):
        if arg.star:
            return None
        if arg.keyword is None:
            if position == place:
                return arg
        elif arg.keyword.value == name:
            return arg
    return None


def bound(call: cst.Call, signature: Signature) -> list[tuple[Parameter, cst.Arg]] | Untranslated:
    """Return each argument with the parameter it belongs to, in the order of the call."""
    by_name = {parameter.name: parameter for parameter in signature}
    pairs: list[tuple[Parameter, cst.Arg]] = []
    for position, arg in enumerate(call.args):
        if arg.star:
            return Untranslated(f"which arguments `{arg.star}` stands for can't be seen", arg)
        if arg.keyword is not None:
            parameter = by_name.get(arg.keyword.value)
            if parameter is None:
                return Untranslated(f"what `{arg.keyword.value}` means isn't known", arg)
        elif position < len(signature):
            parameter = signature[position]
        else:
            return Untranslated("it has more arguments than Apex's signature", arg)
        if any(parameter is other for other, _ in pairs):
            return Untranslated(f"`{parameter.name}` is given twice", arg)
        pairs.append((parameter, arg))
    return pairs


def translated(
    call: cst.Call, signature: Signature, added: Sequence[tuple[str, str]] = ()
) -> list[cst.Arg] | Untranslated:
    """Return the arguments of torch's call: those of ``call``, then ``added`` (name, source) where they aren't given.

    An argument keeps its place where torch has the same one there, and gets its name otherwise.
    """
    pairs = bound(call, signature)
    if isinstance(pairs, Untranslated):
        return pairs
    args: list[cst.Arg] = []
    for position, (parameter, arg) in enumerate(pairs):
        problem = _problem(parameter, arg)
        if problem:
            return Untranslated(problem, arg)
        if isinstance(parameter, Keep):
            is_in_order = position == len(args) and not _names_any(args)
            args.append(_kept(parameter, arg, position if is_in_order else None))
    given = {arg.keyword.value for arg in args if arg.keyword is not None}
    given |= {p.becomes or p.name for p, _ in pairs if isinstance(p, Keep)}
    for name, text in added:
        if name not in given:
            args.append(_keyword(name, cst.parse_expression(text)))
    return _laid_out(args, call)


def _problem(parameter: Parameter, arg: cst.Arg) -> str:
    if isinstance(parameter, Drop):
        value = literal(arg.value)
        if value is COMPUTED or not any(value == each and type(value) is type(each) for each in parameter.only):
            return parameter.why
    if isinstance(parameter, Ignore) and not all(_has_no_effect(node) for node in walk(arg.value)):
        return f"computing `{parameter.name}`, which torch doesn't need, may do something else as well"
    return ""


def _has_no_effect(node: cst.CSTNode) -> bool:
    return isinstance(node, _WITHOUT_EFFECT)


def _kept(parameter: Keep, arg: cst.Arg, position: int | None) -> cst.Arg:
    """The argument for torch; ``position`` is where it stands if everything before it stands there by position."""
    name = parameter.becomes or parameter.name
    if arg.keyword is None:
        if position == parameter.place:
            return arg
        return _keyword(name, arg.value).with_changes(comma=arg.comma, whitespace_after_arg=arg.whitespace_after_arg)
    return arg if arg.keyword.value == name else arg.with_changes(keyword=arg.keyword.with_changes(value=name))


def _names_any(args: Sequence[cst.Arg]) -> bool:
    return any(arg.keyword is not None for arg in args)


def _keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    plain = cst.SimpleWhitespace("")
    equal = cst.AssignEqual(whitespace_before=plain, whitespace_after=plain)
    return cst.Arg(value=value, keyword=cst.Name(name), equal=equal)


def _laid_out(args: list[cst.Arg], call: cst.Call) -> list[cst.Arg]:
    """Give the last argument the end of the old list, and a comma to one that isn't last any more."""
    if not args or not call.args:
        return args
    old_last, gaps = call.args[-1], [arg.comma for arg in call.args[:-1] if isinstance(arg.comma, cst.Comma)]
    gap = gaps[-1] if gaps else cst.MaybeSentinel.DEFAULT
    laid_out = []
    for number, arg in enumerate(args):
        if number == len(args) - 1:
            arg = arg.with_changes(comma=old_last.comma, whitespace_after_arg=old_last.whitespace_after_arg)
        elif arg is old_last or not isinstance(arg.comma, cst.Comma) or _has_comment(arg.comma, old_last):
            arg = arg.with_changes(comma=gap, whitespace_after_arg=cst.SimpleWhitespace(""))
        laid_out.append(arg)
    return laid_out


def _has_comment(comma: cst.Comma, old_last: cst.Arg) -> bool:
    return comma is old_last.comma
