"""Modules of Apex that have no equivalent here: their names import, and raise on use, saying what to do instead.

A package listed in ``_name_only_table.py`` calls :func:`fill` in its ``__init__.py``; its submodules are made here.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable

from ._name_only_table import ADVICE, NAMES

_ROOT = __name__.rpartition(".")[0]


class _NameOnly(type):
    """The type of a class that can be imported, named and inherited from, and not called or asked for a member."""

    _sentence: str

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(cls._sentence)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _function(name, cls.__module__, cls._sentence)


def _function(name: str, module: str, sentence: str) -> Callable[..., Any]:
    def use(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(sentence)

    use.__name__ = use.__qualname__ = name
    use.__module__ = module
    use.__doc__ = sentence
    return use


def _placeholder(name: str, module: str, sentence: str) -> Any:
    if name.lstrip("_")[:1].isupper():
        return _NameOnly(name, (), {"__module__": module, "__doc__": sentence, "_sentence": sentence})
    return _function(name, module, sentence)


def fill(package: str) -> None:
    """Give ``package`` (a full module name) the names and the submodules that the table has for it.

    A name that is in several of its modules is one object, as in Apex.
    """
    top = package[len(_ROOT) + 1 :]
    placeholders: dict[str, Any] = {}
    for path, names in NAMES.items():
        if not (path + ".").startswith(top + "."):
            continue
        module = _module(f"{_ROOT}.{path}", is_package=any(other.startswith(path + ".") for other in NAMES))
        for name in names.split():
            if name not in placeholders:
                sentence = f"apex.{path}.{name} has no equivalent in amp_migrate. {ADVICE[top]}"
                placeholders[name] = _placeholder(name, module.__name__, sentence)
            vars(module).setdefault(name, placeholders[name])


def _module(name: str, is_package: bool) -> ModuleType:
    """The module ``name``: the one that is there, else a new one, known to the import system and to its parent."""
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name, "Names of Apex that raise on use.")
    module.__spec__ = ModuleSpec(name, None, origin="amp_migrate", is_package=is_package)
    if is_package:
        module.__path__ = []
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    # a name of the package hides the submodule of that name, as in Apex (index_mul_2d)
    vars(sys.modules[parent]).setdefault(child, module)
    return module
