"""Harmless classes of the standard library and of configuration packages, as plain data.

Each function gets a ``PickledObject`` whose parts are plain already, and returns a value or raises ``NotPlain``.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import pathlib
import re
import uuid
from typing import Any, Callable, Mapping

from ..records import Global, PickledObject

Conversion = Callable[[PickledObject], Any]

#: a ``range`` becomes a list up to this length
MAX_RANGE = 100_000
_LONGEST_NUMBER = 1000


class NotPlain(Exception):
    """The object isn't what instances of its class look like; it stays what it is, and is refused."""


#: what a defaultdict may make its values with
_FACTORIES = frozenset(
    [f"builtins.{name}" for name in ("dict", "list", "set", "tuple", "int", "float", "str", "bool", "complex")]
    + ["collections.OrderedDict", "collections.Counter"]
)


def attributes(found: PickledObject) -> Any:
    """A bag of attributes (``argparse.Namespace``): a dictionary of them."""
    state = {} if found.state is None else found.state
    if found.args or found.list_items or found.dict_items or type(state) is not dict:
        raise NotPlain
    return {**state, **(found.kwargs or {})}


def items(found: PickledObject) -> Any:
    """A dictionary with attribute access: its items. Attributes that aren't items are private to the class."""
    if found.list_items or found.kwargs:
        raise NotPlain
    values = dict(found.dict_items)
    if len(found.args) == 1 and type(found.args[0]) is dict:
        values = {**found.args[0], **values}
    elif found.args:
        raise NotPlain
    state = {} if found.state is None else found.state
    if type(state) is not dict or any(key not in values and not str(key).startswith("_") for key in state):
        raise NotPlain
    return values


def default_dict(found: PickledObject) -> Any:
    factory = found.args[0] if found.args else None
    is_plain = factory is None or (isinstance(factory, Global) and str(factory) in _FACTORIES)
    if len(found.args) > 1 or not is_plain or found.list_items or found.state:
        raise NotPlain
    return dict(found.dict_items)


def deque(found: PickledObject) -> Any:
    start = found.args[0] if found.args else ()
    if len(found.args) > 2 or not isinstance(start, (list, tuple)) or found.dict_items or found.state:
        raise NotPlain
    return [*start, *found.list_items]


def _made_of(make: Callable[..., Any], kinds: tuple[type, ...], most: int) -> Conversion:
    """Return a conversion that calls a class of the standard library on a few plain arguments."""

    def convert(found: PickledObject) -> Any:
        has_more = found.kwargs or found.state or found.list_items or found.dict_items
        if has_more or len(found.args) > most or not all(type(arg) in kinds for arg in found.args):
            raise NotPlain
        try:
            return make(*found.args)
        except (TypeError, ValueError, OverflowError, ArithmeticError) as error:
            raise NotPlain from error

    return convert


def _range(*args: int) -> list[int]:
    numbers = range(*args)
    if len(numbers) > MAX_RANGE:
        raise ValueError
    return list(numbers)


def _decimal(text: str) -> str:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError
    return str(decimal.Decimal(text))


def _fraction(*parts: Any) -> str:
    """``Fraction("1/3")``, and ``Fraction(1, 3)`` since Python 3.11. An exponent could make it endless."""
    text = "/".join(part if isinstance(part, str) else f"{part:x}" for part in parts)
    if len(text) > _LONGEST_NUMBER or not re.fullmatch(r"-?[0-9a-f]+(/[0-9a-f]+)?", text):
        raise ValueError
    return str(fractions.Fraction(*parts))


def _uuid(found: PickledObject) -> Any:
    state = found.state
    number = state.get("int") if isinstance(state, dict) else None
    if type(number) is not int or not 0 <= number < 1 << 128 or found.args:
        raise NotPlain
    return str(uuid.UUID(int=number))


_DATE = (int, bytes)
_PATH = _made_of(lambda *parts: str(pathlib.PurePosixPath(*parts)), (str,), 1000)
_WINDOWS_PATH = _made_of(lambda *parts: str(pathlib.PureWindowsPath(*parts)), (str,), 1000)

#: by class: what it becomes, and how
CONVERSIONS: Mapping[str, tuple[str, Conversion]] = {
    "argparse.Namespace": ("a dict", attributes),
    "types.SimpleNamespace": ("a dict", attributes),
    "collections.defaultdict": ("a dict", default_dict),
    "collections.deque": ("a list", deque),
    "builtins.range": ("a list", _made_of(_range, (int,), 3)),
    "pathlib.PosixPath": ("a str", _PATH),
    "pathlib.PurePosixPath": ("a str", _PATH),
    "pathlib.Path": ("a str", _PATH),
    "pathlib.WindowsPath": ("a str", _WINDOWS_PATH),
    "pathlib.PureWindowsPath": ("a str", _WINDOWS_PATH),
    "datetime.datetime": ("a str", _made_of(lambda *args: datetime.datetime(*args).isoformat(), _DATE, 7)),
    "datetime.date": ("a str", _made_of(lambda *args: datetime.date(*args).isoformat(), _DATE, 3)),
    "datetime.time": ("a str", _made_of(lambda *args: datetime.time(*args).isoformat(), _DATE, 4)),
    "datetime.timedelta": (
        "a float, of seconds",
        _made_of(lambda *args: datetime.timedelta(*args).total_seconds(), (int,), 3),
    ),
    "decimal.Decimal": ("a str", _made_of(_decimal, (str,), 1)),
    "fractions.Fraction": ("a str", _made_of(_fraction, (str, int), 2)),
    "uuid.UUID": ("a str", _uuid),
    # dictionaries of configuration packages: items with attribute access
    **dict.fromkeys(
        [
            "addict.addict.Dict",
            "detectron2.config.config.CfgNode",
            "easydict.EasyDict",
            "fvcore.common.config.CfgNode",
            "lightning.fabric.utilities.data.AttributeDict",
            "lightning_fabric.utilities.data.AttributeDict",
            "mmcv.utils.config.ConfigDict",
            "mmengine.config.config.ConfigDict",
            "pytorch_lightning.utilities.parsing.AttributeDict",
            "yacs.config.CfgNode",
        ],
        ("a dict", items),
    ),
}
