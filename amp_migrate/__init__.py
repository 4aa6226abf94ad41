"""Move programs and checkpoints from NVIDIA Apex amp to PyTorch's native mixed precision.

Importing this package imports neither torch nor libcst: every public name is loaded when it is first used (PEP 562).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amp_migrate.detect import Environment as Environment
    from amp_migrate.detect import choose_backend as choose_backend
    from amp_migrate.detect import detect_environment as detect_environment
    from amp_migrate.finder import install as install
    from amp_migrate.finder import installed as installed
    from amp_migrate.finder import uninstall as uninstall
    from amp_migrate.notices import MigrationNotice as MigrationNotice

__version__ = "0.1.0"

#: public name → the module that defines it
_HOME = {
    "Environment": "amp_migrate.detect",
    "choose_backend": "amp_migrate.detect",
    "detect_environment": "amp_migrate.detect",
    "install": "amp_migrate.finder",
    "installed": "amp_migrate.finder",
    "uninstall": "amp_migrate.finder",
    "MigrationNotice": "amp_migrate.notices",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
