"""Load an old checkpoint straight into a training script: opened safely, converted, as torch tensors on the CPU."""

from __future__ import annotations

import os
from typing import Any

from .file import converted_tree, executed
from .foreign import find_foreign
from .notes import Report
from .options import Options


def load(path: str | os.PathLike[str], *, report: Report | None = None, **options: Any) -> Any:
    """Return what ``torch.load(path, map_location="cpu")`` would, in native layout.

    Args:
        path: a file that ``torch.save`` wrote, under any torch.
        report: gets the notes on what was done.
        options: see ``Options``.

    Raises:
        CannotConvert: the state can't be carried, or not without an option that is missing; says which.
        Damaged: it is no checkpoint, or a broken one.
        Unsafe: it needs something executed, and neither ``drop_unknown`` nor ``trust`` is set; names it and the place.
        OSError: it can't be read.
    """
    from .live import Live

    settings, notes = Options(**options), Report() if report is None else report
    root = converted_tree(path, settings, notes)
    if settings.trust and find_foreign(root):
        return executed(path, settings, notes)
    return Live().objects(root)
