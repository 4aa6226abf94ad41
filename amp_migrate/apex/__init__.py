"""The drop-in for NVIDIA Apex: its module tree, name by name, on torch's native mixed precision."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

#: the modules of Apex that this drop-in has
_SUBMODULES = ("amp",)

__all__ = list(_SUBMODULES)


def _missing(name: str) -> str:
    return (
        f"amp_migrate.apex has no {name!r}: this version serves {', '.join('apex.' + m for m in _SUBMODULES)}. "
        "Install NVIDIA's Apex beside it for the rest, or replace it by its torch equivalent."
    )


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    # `from apex import name` asks from inside the import system, and would bury an AttributeError's text.
    if sys._getframe(1).f_code.co_filename.startswith("<frozen importlib") and not name.startswith("_"):
        raise ImportError(_missing(name))
    raise AttributeError(_missing(name))
