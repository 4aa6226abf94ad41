"""The table ``[tool.amp_migrate]`` of ``pyproject.toml``."""

from __future__ import annotations

import argparse
import os
import re
from typing import Any, Mapping

from amp_migrate.rewrite.command_line import value_of
from amp_migrate.rewrite.options import OPTIONS, Option, Takes
from amp_migrate.rewrite.toml_file import TomlError, parse_toml

NAME = "pyproject.toml"
TABLE = "[tool.amp_migrate]"
_MAY_HAVE_TABLE = re.compile(rb"amp[-_]migrate")
_BY_KEY = {option.name: option for option in OPTIONS if option.in_file}
_TYPES = {Takes.FLAG: bool, Takes.TEXT: str, Takes.NUMBER: int, Takes.LIST: list}


class SettingsError(Exception):
    """Settings that can't be used. The message names the file and the key, and says what to write."""


def settings_file(path: str) -> str:
    """Return the nearest ``pyproject.toml`` at or above ``path``, as the user would write it, or ``""``."""
    folder = os.path.abspath(path)
    if not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    while True:
        file = os.path.join(folder, NAME)
        if os.path.isfile(file):
            return shown(file)
        above = os.path.dirname(folder)
        if above == folder:
            return ""
        folder = above


def shown(file: str) -> str:
    """Return ``file`` relative to the working directory if it's below or just above it."""
    try:
        relative = os.path.relpath(file)
    except ValueError:  # another drive
        return file
    return relative if len(relative) < len(file) else file


def read_settings(file: str) -> dict[str, Any]:
    """Return the settings in ``file`` by name of attribute; raise :class:`SettingsError` for what can't be one."""
    try:
        with open(file, "rb") as opened:
            content = opened.read()
        if not _MAY_HAVE_TABLE.search(content):
            return {}
        tool = parse_toml(content).get("tool", {})
    except OSError as error:
        raise SettingsError(f"{file}: can't be read: {error.strerror or error}") from error
    except TomlError as error:
        raise SettingsError(f"{file}: {error}") from error
    if not isinstance(tool, dict):
        return {}
    if "amp-migrate" in tool:
        raise SettingsError(f"{file}: [tool.amp-migrate] isn't read; call it {TABLE}")
    table = tool.get("amp_migrate", {})
    if not isinstance(table, dict):
        raise SettingsError(f"{file}: {TABLE} must be a table")
    return _values(file, table)


def _values(file: str, table: Mapping[str, object]) -> dict[str, Any]:
    values = {}
    for key, value in table.items():
        option = _BY_KEY.get(key)
        if option is None:
            raise SettingsError(f"{file}: {TABLE} {key}: {_why_unknown(key)}")
        try:
            values[option.field] = _value(option, value)
        except argparse.ArgumentTypeError as error:
            raise SettingsError(f"{file}: {TABLE} {key}: {error}") from error
    return values


def _why_unknown(key: str) -> str:
    if any(key == option.name for option in OPTIONS) or key in ("explain", "list-rules"):
        return f"can't be set here, only on the command line (--{key})"
    kebab = key.replace("_", "-")
    if kebab in _BY_KEY:
        return f"is unknown; write {kebab}"
    return f"is unknown; there are {', '.join(sorted(_BY_KEY))}"


def _value(option: Option, value: object) -> Any:
    wanted = _TYPES[option.takes]
    # to Python, a boolean is a whole number
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise argparse.ArgumentTypeError(f"must be {option.takes.value}, not {value!r}")
    if isinstance(value, bool):
        return value
    if isinstance(value, list):
        if not all(isinstance(item, str) for item in value):
            raise argparse.ArgumentTypeError(f"must be {option.takes.value}, not {value!r}")
        converted = [value_of(option, item) for item in value]
        return tuple(part for item in converted for part in ((item,) if isinstance(item, str) else item))
    return value_of(option, str(value))
