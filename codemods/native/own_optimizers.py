"""Optimizers whose class the file itself defines: to a training loop they are what torch's own are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from ..tree import dotted_name, walk
from .values import ClassValue, Imported

if TYPE_CHECKING:
    from .solve import Solved

_HOME = "torch.optim"
_NOT_OPTIMIZERS = ("lr_scheduler", "swa_utils")


class OwnOptimizers:
    """The classes of one file that inherit from a torch optimizer and have one plain ``step``."""

    def __init__(self, solved: Solved) -> None:
        self._solved = solved
        self._known: dict[cst.ClassDef, bool] = {}

    def is_one(self, node: cst.ClassDef) -> bool:
        """Return whether ``node`` is such a class."""
        if node not in self._known:
            self._known[node] = False  # while it's looked at: a class can't inherit from itself
            self._known[node] = any(self._is_optimizer(base.value) for base in node.bases) and _has_plain_step(node)
        return self._known[node]

    def _is_optimizer(self, base: cst.BaseExpression) -> bool:
        for value in self._solved.of(base):
            if isinstance(value, ClassValue) and self.is_one(value.node):
                return True
            if isinstance(value, Imported) and value.path.startswith(_HOME):
                return not any(part in value.path for part in _NOT_OPTIMIZERS)
        return False


def _has_plain_step(node: cst.ClassDef) -> bool:
    """A class that steps another optimizer, runs a backward, or clears gradients in its own way is none (SAM …)."""
    for each in walk(node.body):
        if isinstance(each, cst.FunctionDef) and each.name.value in ("zero_grad", "__getattr__"):
            return False
        if not isinstance(each, cst.Call) or not isinstance(each.func, cst.Attribute):
            continue
        of_super = isinstance(each.func.value, cst.Call) and dotted_name(each.func.value.func) == "super"
        if each.func.attr.value in ("step", "backward") and not of_super:
            return False
    return True
