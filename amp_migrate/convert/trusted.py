"""Load a file by executing what it asks for, for who vouches for it. Apex need not be there: the drop-in stands in."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import warnings
from contextlib import contextmanager
from typing import Any, Iterator

import torch

from ..aliases import AliasFinder
from .errors import CannotConvert
from .notes import Kind, Report


@contextmanager
def _dropin_for_apex() -> Iterator[None]:
    """Let ``import apex`` find the drop-in where no Apex is installed, as long as the block runs.

    ``pickle_module`` would be the way of torch.load, but torch 1.13 ignores it.
    """
    if importlib.util.find_spec("apex") is not None:
        yield
        return
    finder = AliasFinder("apex", "amp_migrate.apex")
    before = set(sys.modules)
    finder.name_loaded_modules()
    # first: others would find the drop-in's files by its path, and load them again under Apex's name
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "apex":
                del sys.modules[name]


def execute(path: str | os.PathLike[str], report: Report) -> Any:
    """Return what a file holds, on the CPU, running what it asks for.

    Raises:
        CannotConvert: if a class or function that it needs can't be imported, or fails.
    """
    report.add(Kind.KEPT, "", "the file was trusted: classes and functions that it names were executed")
    takes = inspect.signature(torch.load).parameters
    only: dict[str, Any] = {"weights_only": False} if "weights_only" in takes else {}
    try:
        with warnings.catch_warnings(), _dropin_for_apex():
            warnings.simplefilter("ignore")  # about changes in the source of classes, kept in old files
            return torch.load(os.fspath(path), map_location="cpu", **only)
    except (ImportError, AttributeError) as error:
        raise CannotConvert(
            f"{os.fspath(path)} can't be executed: {error}. Run this where the training's code is importable."
        ) from error
    except Exception as error:  # whatever the code of the file's classes raises
        reason = f"{type(error).__name__}: {error}"
        raise CannotConvert(f"{os.fspath(path)} can't be executed: one of its classes raises {reason}") from error
