"""Rewrite source files: find them, read them, let the rules of :mod:`amp_migrate.codemods` decide, write them safely.

No rule lives here. The public names are loaded when they are first used (PEP 562), so that ``--help`` needn't import
libcst.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amp_migrate.codemods.findings import Finding as Finding
    from amp_migrate.rewrite.report import Report as Report
    from amp_migrate.rewrite.results import FileResult as FileResult
    from amp_migrate.rewrite.results import Outcome as Outcome
    from amp_migrate.rewrite.results import Result as Result
    from amp_migrate.rewrite.results import Settings as Settings
    from amp_migrate.rewrite.results import WriteMode as WriteMode
    from amp_migrate.rewrite.session import rewrite_paths as rewrite_paths
    from amp_migrate.rewrite.source import rewrite_source as rewrite_source

#: public name → the module that defines it
_HOME = {
    "FileResult": "amp_migrate.rewrite.results",
    "Finding": "amp_migrate.codemods.findings",
    "Outcome": "amp_migrate.rewrite.results",
    "Report": "amp_migrate.rewrite.report",
    "Result": "amp_migrate.rewrite.results",
    "Settings": "amp_migrate.rewrite.results",
    "WriteMode": "amp_migrate.rewrite.results",
    "rewrite_paths": "amp_migrate.rewrite.session",
    "rewrite_source": "amp_migrate.rewrite.source",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
