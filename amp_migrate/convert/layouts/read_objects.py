"""Objects that layouts read without building them, and the check that nothing else disappears with them."""

from __future__ import annotations

from typing import Any, Mapping

from .. import scaler
from ..errors import Unsafe
from ..foreign import find_foreign
from ..records import PickledObject
from ..tree import walk
from .kinds import is_module, is_optimizer_object
from .modules import HARMLESS


def _is_read(value: PickledObject) -> bool:
    if is_module(value) or is_optimizer_object(value) or value.cls.name.endswith("TrainingArguments"):
        return True
    return not value.args and scaler.found_in(value) is not None


def refuse_vanished(foreign: Mapping[str, tuple[str, ...]], before: Any, after: Any) -> None:
    """Refuse a file whose conversion would drop, unseen, a class or function that isn't known to be harmless.

    Args:
        foreign: what the file names, with the places (``find_foreign``).
        before: its tree.
        after: the converted tree; what is still in it, others refuse.

    Raises:
        Unsafe: names the first, and its places.
    """
    read = {str(value.cls) for value, _ in walk(before) if isinstance(value, PickledObject) and _is_read(value)}
    left = set(find_foreign(after))
    for name, places in foreign.items():
        if name not in read and name not in left and not name.startswith(HARMLESS):
            raise Unsafe(
                f"{name} at {', '.join(places[:3])} isn't known to be harmless. Use --drop-unknown to leave it out, or "
                "--trust to execute the file if you trust whoever wrote it."
            )
