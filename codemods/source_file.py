"""A parsed file with its facts, each computed when first asked for and then shared by all rules."""

from __future__ import annotations

import libcst as cst

from . import decisions, dynamic_imports, imports
from .scopes import Names, names_of


class SourceFile:
    """One module, and what the rules want to know about it.

    ``own_apex`` is the path of a module of the project itself that ``import apex`` would find, if there is one.
    """

    def __init__(self, module: cst.Module, own_apex: str = "") -> None:
        self.module = module
        self.own_apex = own_apex
        self._names: Names | None = None
        self._verdicts: tuple[decisions.Verdict, ...] | None = None

    @property
    def names(self) -> Names:
        """Scopes, uses and import statements."""
        if self._names is None:
            self._names = names_of(self.module)
        return self._names

    @property
    def verdicts(self) -> tuple[decisions.Verdict, ...]:
        """For each import of Apex: whether it moves to the drop-in, and if not, why."""
        if self._verdicts is None:
            found = imports.apex_imports(self.names)
            dynamic = dynamic_imports.dynamic_imports(self.names)
            self._verdicts = decisions.decide(found, dynamic, self.names, self.own_apex)
        return self._verdicts
