"""The classes of a file: bases, subclasses, methods and who inherits what."""

from __future__ import annotations

from typing import Iterator

import libcst as cst

from ..tree import dotted_name, walk
from .index import Index


class Classes:
    """The class statements of a module, joined by their bases."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.all = [node for node in index.nodes if isinstance(node, cst.ClassDef)]
        by_name = {node.name.value: node for node in self.all}
        self._bases = {
            node: [by_name[name] for name in self._base_names(node) if name in by_name and by_name[name] is not node]
            for node in self.all
        }
        self._methods = {node: {f.name.value: f for f in _functions(node)} for node in self.all}

    @staticmethod
    def _base_names(node: cst.ClassDef) -> Iterator[str]:
        for base in node.bases:
            yield dotted_name(base.value)

    def foreign_bases(self, node: cst.ClassDef) -> list[str]:
        """Return the dotted names of the bases, own and inherited, that this file doesn't define."""
        own = {each.name.value for each in self._bases[node]}
        found = [name for name in self._base_names(node) if name not in own and name != "object"]
        for base in self._bases[node]:
            found += self.foreign_bases(base)
        return found

    def family(self, node: cst.ClassDef) -> cst.ClassDef:
        """Return the topmost class of this file that ``node`` inherits from first: all of a family share fields."""
        seen = {node}
        while self._bases[node] and self._bases[node][0] not in seen:
            node = self._bases[node][0]
            seen.add(node)
        return node

    def members(self, node: cst.ClassDef) -> list[cst.ClassDef]:
        """Return every class of the family of ``node``."""
        top = self.family(node)
        return [each for each in self.all if self.family(each) is top]

    def with_subclasses(self, node: cst.ClassDef) -> list[cst.ClassDef]:
        """Return ``node`` and the classes that inherit from it."""
        return [each for each in self.all if node in self._line(each)]

    def method(self, node: cst.ClassDef, name: str) -> cst.FunctionDef | None:
        """Return the method that an object of class ``node`` has under ``name``."""
        for each in self._line(node):
            if name in self._methods[each]:
                return self._methods[each][name]
        return None

    def inherited(self, node: cst.ClassDef | None, name: str) -> cst.FunctionDef | None:
        """Return the method that ``super()`` finds from class ``node``."""
        for each in self._line(node)[1:] if node is not None else []:
            if name in self._methods[each]:
                return self._methods[each][name]
        return None

    def overrides(self, function: cst.FunctionDef) -> list[cst.FunctionDef]:
        """Return every method of that name in the family of the class of ``function``, itself included."""
        owner = self.index.class_of(function)
        if owner is None:
            return [function]
        name = function.name.value
        return [self._methods[each][name] for each in self.members(owner) if name in self._methods[each]]

    def _line(self, node: cst.ClassDef) -> list[cst.ClassDef]:
        line, waiting = [], [node]
        while waiting:
            each = waiting.pop(0)
            if each not in line:
                line.append(each)
                waiting.extend(self._bases[each])
        return line


def _functions(node: cst.ClassDef) -> Iterator[cst.FunctionDef]:
    for statement in node.body.body:
        if isinstance(statement, cst.FunctionDef):
            yield statement
        elif isinstance(statement, (cst.If, cst.Try, cst.With)):
            yield from (each for each in walk(statement) if isinstance(each, cst.FunctionDef))


def is_static(function: cst.FunctionDef) -> bool:
    """Return whether a method is a static one."""
    return any(dotted_name(each.decorator) == "staticmethod" for each in function.decorators)
