"""Reading TOML on every Python: the standard library has it from 3.11 on."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


class TomlError(Exception):
    """The file isn't TOML, or there is nothing to read it with. The message is one sentence for a person."""


def parse_toml(content: bytes) -> dict[str, Any]:
    """Return what ``content`` says; raise :class:`TomlError` if it can't be read."""
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        toml = import_module(name)
    except ImportError:
        raise TomlError(f"settings can't be read without the package {name}; install it (pip install {name})") from None
    try:
        parsed: dict[str, Any] = toml.loads(content.decode())
    except (toml.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TomlError(f"this isn't TOML: {error}") from error
    return parsed
