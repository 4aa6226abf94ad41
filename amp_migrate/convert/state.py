"""Convert checkpoints that are loaded already."""

from __future__ import annotations

from typing import Any

from .layouts import convert_tree
from .notes import Report
from .options import Options


def convert_state(obj: Any, **options: Any) -> tuple[Any, Report]:
    """Return a checkpoint in native layout (or Apex's, with ``to="apex"``), and what was done.

    ``obj`` isn't changed. What needs no change comes back as the same object; tensors share memory with ``obj``'s.

    Args:
        obj: what ``torch.load`` returned, or a state of a model, an optimizer or a scaler.
        options: see ``Options``.

    Raises:
        CannotConvert: for a state that can't be carried, or not without an option that is missing; says which.
    """
    settings, report = Options(**options), Report()
    return converted(obj, settings, report), report


def converted(obj: Any, settings: Options, report: Report) -> Any:
    """The same with options and report at hand."""
    from .live import Live
    from .live_objects import with_native_objects

    live = Live()
    tree = live.records(with_native_objects(obj, settings, report))
    return live.objects(convert_tree(tree, settings, report))
