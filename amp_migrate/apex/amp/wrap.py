"""Apex's wrappers around torch functions, as far as programs call them. Source: apex/amp/wrap.py."""

from __future__ import annotations

from typing import Any, Callable

from . import utils
from ._registry import _promote, decorate


def make_cast_wrapper(orig_fn: Any, cast_fn: Callable[[Any], Any], handle: Any, try_caching: bool = False) -> Any:
    """Return ``orig_fn`` with its floating arguments cast by ``cast_fn`` while casts are on."""
    return decorate(orig_fn, lambda args, kwargs: utils.casted_args(cast_fn, args, kwargs))


def make_promote_wrapper(orig_fn: Any, cast_fn: Callable[[Any], Any], handle: Any = None) -> Any:
    """Return ``orig_fn`` with arguments of different floating types cast to float32 while casts are on."""
    return decorate(orig_fn, _promote)
