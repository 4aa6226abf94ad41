"""On a torch without native AMP (before 1.6), or if asked to, the drop-in hands everything to the installed Apex."""

from __future__ import annotations

import importlib
import os
import sys


def pass_through_if_needed(package: str) -> None:
    """Replace ``package`` in ``sys.modules`` by the real ``apex`` where native AMP isn't to be had.

    Raises:
        UnsupportedTorch: if there is no real Apex with amp either.
    """
    import torch

    asked = os.environ.get("AMP_MIGRATE_BACKEND")
    if asked in (None, "", "native") and hasattr(torch, "autocast_increment_nesting"):
        return
    from ..aliases import AliasFinder
    from ..detect import require_backend

    if require_backend().name == "native":
        return
    finder = AliasFinder(package, "apex")
    sys.meta_path.insert(0, finder)
    sys.modules[package] = importlib.import_module("apex")
    finder.name_loaded_modules()
