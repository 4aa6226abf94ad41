"""What ``amp.initialize`` is asked for: the opt level, the loss scale and its bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping

import libcst as cst

from .defaults import Defaults
from .half_sites import dynamic_arguments
from .index import code_of
from .options import text_of
from .problem import CannotFollow
from .signatures import call_argument
from .sites import Initialize, initialize_keyword
from .solve import Solved

DEFAULT_LEVEL = "O1"
#: Apex's defaults for a dynamic scale (apex/amp/scaler.py); the ceiling is left out natively, as the docs say
DEFAULT_CEILING = 2.0**24
#: keywords that change what O1 casts; None and absence are the same
_OVERRIDES = ("cast_model_type", "patch_torch_functions", "master_weights", "cast_model_outputs")
_LEVELS = ("O0", "O1", "O2", "O3")


@dataclass(frozen=True)
class OptLevel:
    """The level: a literal one, or an expression with the default that the file shows for it (None: unknown).

    ``switch`` is a test that is true where the level isn't O0, if the level is chosen between O0 and one other.
    """

    name: str | None
    expression: cst.BaseExpression | None = None
    switch: tuple[cst.BaseExpression, bool] | None = None


@dataclass(frozen=True)
class LossScale:
    """A static scale, or None for a dynamic one, with its bounds."""

    static: float | None = None
    floor: float | None = None
    ceiling: float | None = None
    #: whether the program computes it, so that it may be static at run time
    is_computed: bool = False
    #: whether it's dynamic unless an option says otherwise
    is_chosen: bool = False
    #: arguments that GradScaler gets besides
    given: Mapping[str, cst.BaseExpression] = field(default_factory=dict)


def opt_level(site: Initialize, solved: Solved) -> OptLevel:
    """Return the level that ``site`` asks for. A half model with masters is O2 before its time."""
    if site.half is not None:
        return OptLevel("O2")
    node = initialize_keyword(site, "opt_level")
    if node is None:
        return OptLevel(DEFAULT_LEVEL)
    literal = text_of(node)
    if literal is not None:
        if literal not in _LEVELS:
            raise CannotFollow(f"`opt_level={code_of(node)}` isn't a level (is it the letter O?)", node)
        return OptLevel(literal)
    if isinstance(node, cst.IfExp):
        yes, no = text_of(node.body), text_of(node.orelse)
        if yes in _LEVELS and no == "O0":
            return OptLevel(yes, node, (node.test, True))
        if no in _LEVELS and yes == "O0":
            return OptLevel(no, node, (node.test, False))
    return OptLevel(_default_of(node, solved), node)


def loss_scale(site: Initialize, level: str, solved: Solved) -> LossScale:
    """Return the loss scale that ``site`` asks for. A computed one counts by its default, as a level does."""
    if site.half is not None:
        return _half_loss_scale(site.call)
    for keyword in _OVERRIDES:
        if initialize_keyword(site, keyword) is not None and level != "O2":
            raise CannotFollow(f"`amp.initialize` gets `{keyword}=`, which native AMP lacks", site.call, 6)
    floor = _number_keyword(site, "min_loss_scale")
    ceiling = _number_keyword(site, "max_loss_scale")
    if ceiling is not None and ceiling >= DEFAULT_CEILING:
        ceiling = None
    node = initialize_keyword(site, "loss_scale")
    if node is None:
        return LossScale(1.0 if level in ("O0", "O3") else None, floor, ceiling)
    text = text_of(node)
    if text == "dynamic":
        return LossScale(None, floor, ceiling)
    try:
        return LossScale(float(text if text is not None else code_of(node)), floor, ceiling)
    except ValueError:
        is_dynamic = Defaults(solved).text(node) == "dynamic" or Defaults(solved).is_none(node)
        return LossScale(None, floor, ceiling, is_computed=not is_dynamic, is_chosen=is_dynamic)


def _half_loss_scale(call: cst.Call) -> LossScale:
    """``FP16_Optimizer(…, static_loss_scale=1.0, dynamic_loss_scale=False, dynamic_loss_args=None)``"""
    dynamic = call_argument(call, 2, "dynamic_loss_scale")
    text = "False" if dynamic is None else code_of(dynamic)
    if text == "True":
        return LossScale(given=dynamic_arguments(call))
    static = call_argument(call, 1, "static_loss_scale")
    try:
        value = 1.0 if static is None else float(code_of(static))
    except ValueError:
        return LossScale(is_computed=True)
    return LossScale(value) if text == "False" else LossScale(is_computed=True)


def _number_keyword(site: Initialize, keyword: str) -> float | None:
    node = initialize_keyword(site, keyword)
    if node is None:
        return None
    try:
        return _number(node)
    except ValueError:
        raise CannotFollow(f"`{keyword}={code_of(node)}` is computed", node, 6) from None


def _number(node: cst.BaseExpression) -> float:
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Power):
        return float(_number(node.left) ** _number(node.right))
    return float(code_of(node))


def _default_of(node: cst.BaseExpression, solved: Solved) -> str | None:
    """Return the level that ``node`` has if nobody chooses another one."""
    defaults = Defaults(solved)
    if isinstance(node, cst.FormattedString) and len(node.parts) == 2:
        first, second = node.parts
        if isinstance(first, cst.FormattedStringText) and isinstance(second, cst.FormattedStringExpression):
            return _as_level(first.value, defaults.text(second.expression))
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
        suffix = node.right
        if isinstance(suffix, cst.Call) and len(suffix.args) == 1:
            suffix = suffix.args[0].value
        return _as_level(text_of(node.left), defaults.text(suffix))
    return _as_level("", defaults.text(node))


def _as_level(prefix: str | None, rest: str | None) -> str | None:
    level = None if prefix is None or rest is None else prefix + rest
    return level if level in _LEVELS else None
