"""How this file says ``torch``: through a name that it has, or one that an import brings in."""

from __future__ import annotations

import libcst as cst

from .scopes import Names, Scope, bound_name
from .tree import dotted_name


class TorchNames:
    """Spells dotted names below ``torch`` from what the file has bound, never from what stands at some call."""

    def __init__(self, module: cst.Module, names: Names) -> None:
        self._module = module
        self._names = names
        self.root = self._bound() or "torch"
        self._needs_import = self._bound() is None
        self._was_used = False

    def expression(self, dotted: str) -> cst.BaseExpression:
        """Return the expression for ``dotted``, which begins with ``torch``."""
        self._was_used = True
        return cst.parse_expression(self.root + dotted[len("torch") :])

    def is_shadowed(self, scope: Scope) -> bool:
        """Return whether the name for torch means something else in ``scope``."""
        owner = self._names.owner(self.root, scope)
        if owner is not self._names.module:
            return True
        binders = self._names.module.binders.get(self.root, [])
        return any(not isinstance(each, cst.ImportAlias) for each in binders)

    @property
    def needs_import(self) -> bool:
        """Whether something was spelled, and ``import torch`` has to be added for it."""
        return self._needs_import and self._was_used

    def _bound(self) -> str | None:
        for statement, scope in self._names.imports:
            if scope is not self._names.module or not isinstance(statement, cst.Import):
                continue
            for alias in statement.names:
                path = dotted_name(alias.name)
                if path == "torch" or (path.startswith("torch.") and alias.asname is None):
                    return bound_name(alias)
        return None
