"""Everything that the drop-in changes outside itself, written down so that it can be put back.

Apex's interface forces changes on objects that aren't ours: an optimizer's ``step``, a module's class, autocast's
state. Each goes through the ledger, so a failed ``initialize`` and ``uninstall()`` restore the very same objects.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable

_MISSING = object()


class PatchLedger:
    """Undo actions, newest last."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def record(self, undo: Callable[[], None]) -> None:
        """Remember how to take one change back."""
        self._undo.append(undo)

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name`` and remember what stood in the owner's own ``__dict__``, or that nothing did."""
        before = vars(owner).get(name, _MISSING)
        reference = _reference(owner)
        setattr(owner, name, value)

        def undo() -> None:
            alive = reference()
            if alive is None:
                return
            if before is _MISSING:
                delattr(alive, name)
            else:
                setattr(alive, name, before)

        self.record(undo)

    def set_item(self, mapping: Any, key: Any, value: Any) -> None:
        """Set ``mapping[key]``, which is there, and remember what it was."""
        before = mapping[key]
        mapping[key] = value
        self.record(lambda: mapping.__setitem__(key, before))

    def mark(self) -> int:
        """A position to return to with :meth:`undo_to`."""
        return len(self._undo)

    def undo_to(self, mark: int) -> None:
        """Take back every change made since ``mark``, newest first."""
        while len(self._undo) > mark:
            self._undo.pop()()

    def undo_all(self) -> None:
        """Take back everything."""
        self.undo_to(0)


def _reference(owner: Any) -> Callable[[], Any]:
    """A weak reference for instances, so that the ledger keeps no optimizer or model alive."""
    if isinstance(owner, type) or type(owner).__name__ == "module":
        return lambda: owner
    try:
        return weakref.ref(owner)
    except TypeError:
        return lambda: owner


patches = PatchLedger()
