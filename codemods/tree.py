"""Walking a LibCST tree by hand.

A visitor costs about as much as the parse, and LibCST's own scope metadata three times as much. Looking only at the
fields that hold code, with a list instead of recursion, costs a tenth of the parse and can't overflow the stack.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Iterator, Sequence

import libcst as cst

#: fields that hold only layout or punctuation
_LAYOUT = {
    "lpar",
    "rpar",
    "comma",
    "semicolon",
    "equal",
    "colon",
    "dot",
    "header",
    "footer",
    "leading_lines",
    "lines_after_decorators",
    "lines_after_module_docstring",
    "trailing_whitespace",
    "newline",
}

_code_fields: dict[type[cst.CSTNode], tuple[str, ...]] = {}


def code_fields(node: cst.CSTNode) -> tuple[str, ...]:
    """Return the names of the fields of ``node`` that can hold code."""
    kind = type(node)
    names = _code_fields.get(kind)
    if names is None:
        names = tuple(f.name for f in fields(kind) if f.name not in _LAYOUT and not f.name.startswith("whitespace"))
        _code_fields[kind] = names
    return names


def children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the nodes directly below ``node`` that hold code, in the order of their fields."""
    for name in code_fields(node):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            yield value
        elif isinstance(value, (list, tuple)):
            for item in value:
                if isinstance(item, cst.CSTNode):
                    yield item


def walk(root: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield ``root`` and every node below it that holds code, parents before children, in source order."""
    waiting: list[cst.CSTNode] = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(list(children(node))))


def parents(root: cst.CSTNode) -> dict[cst.CSTNode, cst.CSTNode]:
    """Return the parent of every node below ``root`` that holds code."""
    return {child: node for node in walk(root) for child in children(node)}


def dotted_name(node: cst.CSTNode) -> str:
    """Return ``"a.b.c"`` for a name or a chain of attributes of a name, ``""`` for anything else."""
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    if not isinstance(node, cst.Name):
        return ""
    parts.append(node.value)
    return ".".join(reversed(parts))


def decorator_name(decorator: cst.Decorator) -> str:
    """Return the dotted name of a decorator, called or not."""
    node = decorator.decorator
    return dotted_name(node.func if isinstance(node, cst.Call) else node)


def blocks(root: cst.CSTNode) -> Iterator[Sequence[cst.BaseStatement]]:
    """Yield the statements of every block that has lines of its own (the module's, and each indented one)."""
    for node in walk(root):
        if isinstance(node, (cst.Module, cst.IndentedBlock)):
            yield node.body
