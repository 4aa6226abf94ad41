"""Import one package under another name, as the very same module objects."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Sequence


class AliasFinder:
    """A meta path finder that answers for ``alias`` and everything below it with ``target``'s modules.

    Args:
        alias: the name that programs import, e.g. "apex".
        target: the package that they get, e.g. "amp_migrate.apex".
    """

    #: tells our finders on ``sys.meta_path`` from others
    is_amp_migrate = True

    def __init__(self, alias: str, target: str) -> None:
        self.alias = alias
        self.target = target

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of an aliased module; None for other names, and for modules that the target lacks."""
        if not self.serves(fullname):
            return None
        name = self.target + fullname[len(self.alias) :]
        try:
            real = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            return None
        if real is None:
            return None
        spec = ModuleSpec(fullname, _AliasLoader(self, name), origin=real.origin)
        spec.submodule_search_locations = real.submodule_search_locations
        return spec

    def serves(self, fullname: str) -> bool:
        """Whether this finder answers for ``fullname``."""
        return (fullname + ".").startswith(self.alias + ".")

    def name_loaded_modules(self) -> None:
        """Enter the target's loaded modules under their alias.

        Importing one of them under the alias later would set it as an attribute of its parent, which may have an
        object of the same name there (``apex.amp._amp_state``).
        """
        for name, module in list(sys.modules.items()):
            alias = self.alias + name[len(self.target) :]
            if name.startswith(self.target + ".") and self.serves(alias):
                sys.modules.setdefault(alias, module)


class _AliasLoader(Loader):
    def __init__(self, finder: AliasFinder, name: str) -> None:
        self._finder = finder
        self._name = name
        self._own_spec: Any = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._name)
        self._own_spec = module.__spec__
        return module

    def get_code(self, fullname: str) -> Any:
        """The target's code, for ``python -m``."""
        spec = importlib.util.find_spec(self._name)
        loader: Any = spec.loader if spec is not None else None
        return loader.get_code(self._name)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own_spec  # the import system has put the alias's there
        self._finder.name_loaded_modules()
