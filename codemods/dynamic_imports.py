"""Calls that import by a string, or ask whether a module is there, as facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator

import libcst as cst

from .dropin import path_below_apex
from .scopes import Names, Use, bound_name
from .tree import dotted_name

#: full name of a function → whether it imports (True) or only asks
_FUNCTIONS: dict[str, bool] = {
    "importlib.import_module": True,
    "importlib.util.find_spec": False,
    "importlib.find_loader": False,
    "pkgutil.find_loader": False,
    "builtins.__import__": True,
}
_MODULES = {name.partition(".")[0] for name in _FUNCTIONS}


@dataclass(frozen=True)
class DynamicImport:
    """A call that names Apex in a string. ``literal`` is the string if the call is one that can be redirected."""

    node: cst.Call
    function: str
    imported: str
    literal: cst.SimpleString | None

    @property
    def imports(self) -> bool:
        """Whether the call imports the module, rather than asking whether it is there."""
        return _FUNCTIONS[self.function]


def dynamic_imports(names: Names) -> tuple[DynamicImport, ...]:
    """Return the calls of the standard library's import functions that name Apex in their first argument."""
    found = []
    for use, function in _calls(names):
        call = use.parent
        assert isinstance(call, cst.Call)
        imported = _apex_argument(call)
        if imported is not None:
            literal = _literal(call) if function == "importlib.import_module" else None
            found.append(DynamicImport(call, function, imported, literal))
    return tuple(found)


def _literal(call: cst.Call) -> cst.SimpleString | None:
    """Return the string to change. A second argument (the package of a relative name) makes it another question."""
    value = call.args[0].value
    return value if isinstance(value, cst.SimpleString) and len(call.args) == 1 else None


def _calls(names: Names) -> Iterator[tuple[Use, str]]:
    for name, module_or_function in _candidates(names):
        for use in names.uses.get(name, ()):
            function = ".".join((module_or_function, *use.attributes))
            called = isinstance(use.parent, cst.Call) and use.parent.func is use.node
            if called and function in _FUNCTIONS and _stands_for(names, use) == module_or_function:
                yield use, function


def _candidates(names: Names) -> Iterator[tuple[str, str]]:
    """Yield each local name that an import binds to something of interest, with what that is; each pair once."""
    pairs = {("__import__", "builtins.__import__")}
    for statement, _ in names.imports:
        if isinstance(statement.names, cst.ImportStar):
            continue
        for alias in statement.names:
            meaning = _meaning(statement, alias)
            if meaning.partition(".")[0] in _MODULES:
                pairs.add((bound_name(alias), meaning))
    return iter(sorted(pairs))


def _stands_for(names: Names, use: Use) -> str:
    """Return what the name of ``use`` is bound to, if every binding of it says the same; else ``""``."""
    binders = names.binders(use.name, use.scope)
    if not binders:
        return f"builtins.{use.name}"
    meanings = {_meaning_of_alias(names, binder) for binder in binders}
    return meanings.pop() if len(meanings) == 1 else ""


def _meaning_of_alias(names: Names, binder: cst.CSTNode) -> str:
    for statement, _ in names.imports:
        if not isinstance(statement.names, cst.ImportStar) and any(alias is binder for alias in statement.names):
            assert isinstance(binder, cst.ImportAlias)
            return _meaning(statement, binder)
    return ""


def _meaning(statement: cst.CSTNode, alias: cst.ImportAlias) -> str:
    """Return the full name of what ``alias`` binds: ``importlib`` for ``import importlib.util`` without an alias."""
    dotted = dotted_name(alias.name)
    if isinstance(statement, cst.ImportFrom):
        if statement.relative or statement.module is None:
            return ""
        return f"{dotted_name(statement.module)}.{dotted}"
    return dotted if alias.asname is not None else dotted.partition(".")[0]


def _apex_argument(call: cst.Call) -> str | None:
    """Return the path below ``apex`` that the call names, as far as its arguments show it."""
    texts = [_start_of_text(argument.value) for argument in call.args[:2]]
    if len(texts) == 2 and texts[0].startswith("."):
        texts[0] = texts[1] + texts[0]
    return path_below_apex(texts[0]) if texts else None


def _start_of_text(value: cst.BaseExpression) -> str:
    """Return the string that ``value`` spells out, or how it begins if it's an f-string, or ``""``."""
    if isinstance(value, cst.FormattedString):
        first = value.parts[0] if value.parts else None
        return first.value if isinstance(first, cst.FormattedStringText) else ""
    text = value.evaluated_value if isinstance(value, (cst.SimpleString, cst.ConcatenatedString)) else ""
    return text if isinstance(text, str) else ""
