"""What the library rules want to know about a file besides its uses of Apex: facts, each computed when asked for."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import libcst as cst

from .library_calls import COMPUTED, argument, literal
from .library_uses import Item, imported_names, library_items
from .scopes import Scope, Use
from .source_file import SourceFile
from .torch_names import TorchNames
from .tree import dotted_name, parents, walk

_torch_names: WeakKeyDictionary[SourceFile, TorchNames] = WeakKeyDictionary()


def torch_of(source: SourceFile) -> TorchNames:
    """Return the file's spelling of torch, the same object each time: it notes whether an import is needed."""
    own = getattr(source, "torch", None)
    if isinstance(own, TorchNames):
        return own
    if source not in _torch_names:
        _torch_names[source] = TorchNames(source.module, source.names)
    return _torch_names[source]


class LibraryFile:
    """One file as the library rules see it."""

    def __init__(self, source: SourceFile) -> None:
        self.source = source
        self.target = source.target
        self.names = source.names
        self.items: tuple[Item, ...] = library_items(source.names)
        self._parents: dict[cst.CSTNode, cst.CSTNode] | None = None
        self._words: dict[str, cst.CSTNode] | None = None
        self._attributes: dict[str, cst.CSTNode] = {}
        self._imported: dict[cst.CSTNode, str] | None = None

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Return the node that ``node`` stands in."""
        if self._parents is None:
            self._parents = parents(self.source.module)
        return self._parents.get(node)

    def word(self, *words: str) -> cst.CSTNode | None:
        """Return a place where the file says one of ``words``: as an attribute, a name, a keyword or a whole string."""
        if self._words is None:
            self._words, self._attributes = _words(self.source.module)
        return next((self._words[word] for word in words if word in self._words), None)

    def attribute(self, *names: str) -> cst.CSTNode | None:
        """Return a place where the file reads or sets an attribute called one of ``names``."""
        self.word()
        return next((self._attributes[name] for name in names if name in self._attributes), None)

    def meaning(self, node: cst.CSTNode, scope: Scope) -> str:
        """Return the dotted path that an expression stands for through imports, ``""`` if that can't be said."""
        first, _, rest = dotted_name(node).partition(".")
        if not first:
            return ""
        if self._imported is None:
            self._imported = imported_names(self.names)
        binders = self.names.binders(first, scope)
        paths = {self._imported.get(each, "") for each in binders}
        if len(paths) != 1 or not (path := paths.pop()):
            return ""
        return f"{path}.{rest}" if rest else path

    def torch_is_hidden(self, scope: Scope) -> bool:
        """Return whether the name by which the file says torch could be something else in ``scope``."""
        torch = torch_of(self.source)
        if torch.is_shadowed(scope):
            return True
        if self._imported is None:
            self._imported = imported_names(self.names)
        binders = self.names.module.binders.get(torch.root, [])
        return any(self._imported.get(each) != "torch" for each in binders)

    def uses_meaning(self, *paths: str) -> list[Use]:
        """Return the uses of names that stand for one of ``paths`` (of torch, say) or a part of it."""
        ends = {path.rpartition(".")[2] for path in paths}
        wanted = tuple(f"{path}." for path in paths)
        found = [use for uses in self.names.uses.values() for use in uses if _could_end(use, ends, self)]
        return [use for use in found if f"{self.meaning(use.node, use.scope)}.".startswith(wanted)]

    @property
    def amp_levels(self) -> list[object]:
        """The ``opt_level`` of each ``amp.initialize``; COMPUTED where it, or what it implies, isn't shown."""
        return [_level(item.call) for item in self.items if item.path == "amp.initialize"]


#: these change what a level implies
_OVERRIDES = ("cast_model_type", "master_weights", "patch_torch_functions")


def _level(call: cst.Call | None) -> object:
    if call is None or any(arg.star for arg in call.args):
        return COMPUTED
    if any(arg.keyword is not None and arg.keyword.value in _OVERRIDES for arg in call.args):
        return COMPUTED
    arg = argument(call, "opt_level", 3)
    return "O1" if arg is None else literal(arg.value)


def _could_end(use: Use, ends: set[str], file: LibraryFile) -> bool:
    if ends.intersection(use.attributes):
        return True
    binders = file.names.binders(use.name, use.scope)
    return any(isinstance(each, cst.ImportAlias) and each.evaluated_name in ends for each in binders)


def _words(module: cst.Module) -> tuple[dict[str, cst.CSTNode], dict[str, cst.CSTNode]]:
    """The first place of each name and string in the module, and of each attribute; ``getattr(x, "name")`` counts."""
    words: dict[str, cst.CSTNode] = {}
    attributes: dict[str, cst.CSTNode] = {}
    for node in walk(module):
        if isinstance(node, cst.Name):
            words.setdefault(node.value, node)
        elif isinstance(node, cst.Attribute):
            attributes.setdefault(node.attr.value, node)
        elif isinstance(node, cst.SimpleString) and isinstance(node.evaluated_value, str):
            words.setdefault(node.evaluated_value, node)
            attributes.setdefault(node.evaluated_value, node)
    return words, attributes
