"""Take over checkpoints that Apex wrote: into native layout, opened without executing anything of them.

Importing this package imports no torch: every public name is loaded when it is first used (PEP 562).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amp_migrate.convert.command.main import main as main
    from amp_migrate.convert.errors import CannotConvert as CannotConvert
    from amp_migrate.convert.errors import Damaged as Damaged
    from amp_migrate.convert.errors import Unsafe as Unsafe
    from amp_migrate.convert.file import convert_file as convert_file
    from amp_migrate.convert.layouts import convert_tree as convert_tree
    from amp_migrate.convert.loading import load as load
    from amp_migrate.convert.notes import Report as Report
    from amp_migrate.convert.optimizer import optimizer_state as optimizer_state
    from amp_migrate.convert.options import Options as Options
    from amp_migrate.convert.scaler import scaler_state as scaler_state
    from amp_migrate.convert.state import convert_state as convert_state

#: public name → the module that defines it
_HOME = {
    "CannotConvert": "errors",
    "Damaged": "errors",
    "Options": "options",
    "Report": "notes",
    "Unsafe": "errors",
    "convert_file": "file",
    "convert_state": "state",
    "convert_tree": "layouts",
    "load": "loading",
    "main": "command.main",
    "optimizer_state": "optimizer",
    "scaler_state": "scaler",
}

__all__ = [
    "CannotConvert",
    "Damaged",
    "Options",
    "Report",
    "Unsafe",
    "convert_file",
    "convert_state",
    "convert_tree",
    "load",
    "main",
    "optimizer_state",
    "scaler_state",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
