"""A parsed file with its facts, each computed when first asked for and then shared by all rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from . import decisions, dynamic_imports, imports
from .scopes import Names, names_of
from .target import Target
from .torch_names import TorchNames

if TYPE_CHECKING:
    from .native.file_plan import NativePlan


class SourceFile:
    """One module, and what the rules want to know about it.

    ``own_apex`` is the path of a module of the project itself that ``import apex`` would find, if there is one.
    ``codes`` are the rules that are run; None means all.
    """

    def __init__(
        self, module: cst.Module, target: Target, own_apex: str = "", codes: frozenset[str] | None = None
    ) -> None:
        self.module = module
        self.target = target
        self.own_apex = own_apex
        self._codes = codes
        self._names: Names | None = None
        self._verdicts: tuple[decisions.Verdict, ...] | None = None
        self._native: NativePlan | None = None
        self._torch: TorchNames | None = None

    def is_wanted(self, *codes: str) -> bool:
        """Return whether the rules ``codes`` are all run on this file."""
        return self._codes is None or self._codes.issuperset(codes)

    @property
    def names(self) -> Names:
        """Scopes, uses and import statements."""
        if self._names is None:
            self._names = names_of(self.module)
        return self._names

    @property
    def torch(self) -> TorchNames:
        """How the file says torch. It remembers whether it was asked, and so whether an import is needed."""
        if self._torch is None:
            self._torch = TorchNames(self.module, self.names)
        return self._torch

    @property
    def native(self) -> NativePlan:
        """What becomes native; empty with another target."""
        if self._native is None:
            from .native.file_plan import native_plan

            self._native = native_plan(self)
        return self._native

    @property
    def verdicts(self) -> tuple[decisions.Verdict, ...]:
        """For each import of Apex: whether it moves to the drop-in, and if not, why."""
        if self._verdicts is None:
            going = self.native.going
            found = tuple(each for each in imports.apex_imports(self.names) if each.node not in going)
            dynamic = dynamic_imports.dynamic_imports(self.names)
            self._verdicts = decisions.decide(found, dynamic, self.names, self.own_apex)
        return self._verdicts
