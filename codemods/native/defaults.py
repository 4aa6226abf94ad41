"""The text that an expression has if nobody chooses another one: an option's default, a field's, a parameter's."""

from __future__ import annotations

from typing import Iterator

import libcst as cst

from ..tree import dotted_name, walk
from .options import option_calls, text_of
from .signatures import keyword_argument
from .solve import Solved
from .values import Apex, FunctionValue

#: calls that define an option as (name, default): absl and the old tf.app
_DEFINES = ("DEFINE_string", "DEFINE_enum", "DEFINE_integer")
#: how many expressions are followed from one to the next
_DEEPEST = 6


class Defaults:
    """Answers for the expressions of one file.

    Whatever the file stores under a name counts, wherever it's stored; where two differ, the default is unknown.
    """

    def __init__(self, solved: Solved) -> None:
        self.solved = solved
        self._depth = 0

    def text(self, node: cst.BaseExpression | None) -> str | None:
        """Return the default of ``node``, or None where it's unknown, differs, or isn't text."""
        if isinstance(node, cst.Integer):
            return node.value
        literal = text_of(node)
        if literal is not None or node is None or self._depth >= _DEEPEST:
            return literal
        self._depth += 1
        try:
            return self._text(node)
        finally:
            self._depth -= 1

    def is_none(self, node: cst.BaseExpression) -> bool:
        """Return whether ``node`` is None if nobody chooses: an option without ``default=``, or with None."""
        if not isinstance(node, cst.Attribute):
            return False
        stored = [*self._stored_as(node.attr.value), *self._fields(node)]
        return bool(stored) and all(each is None or _is_none(each) for each in stored)

    def _text(self, node: cst.BaseExpression) -> str | None:
        if isinstance(node, cst.Name):
            return self._of_name(node)
        if isinstance(node, cst.Attribute):
            return self._same([*self._stored_as(node.attr.value), *self._fields(node)])
        key, fallback = looked_up(node)
        if key is None:
            return None
        return self._same([*self._stored_as(key), *([fallback] if fallback is not None else [])])

    def _same(self, stored: list[cst.BaseExpression | None]) -> str | None:
        found = {self.text(each) for each in stored}
        return found.pop() if len(found) == 1 else None

    def _stored_as(self, name: str) -> Iterator[cst.BaseExpression | None]:
        """Yield what the file stores under ``name`` in options, configurations and their classes."""
        module = self.solved.index.module
        for call in option_calls(module, name):
            yield keyword_argument(call, "default")
        for node in walk(module):
            if isinstance(node, cst.ClassDef):
                yield from _class_fields(node, name)
            elif isinstance(node, cst.DictElement) and text_of(node.key) == name:
                yield node.value
            elif isinstance(node, cst.Call):
                yield from self._given(node, name)
            elif isinstance(node, cst.Assign):
                yield from (node.value for target in node.targets if _key_of(target.target) == name)

    def _given(self, call: cst.Call, name: str) -> Iterator[cst.BaseExpression | None]:
        """Yield what ``call`` sets ``name`` to: ``Config(name=…)``, ``set_defaults(name=…)``, ``DEFINE_string``."""
        callees = self.solved.of(call.func)
        if any(isinstance(value, (Apex, FunctionValue)) for value in callees):
            return
        if dotted_name(call.func).rpartition(".")[2] in _DEFINES:
            if len(call.args) > 1 and text_of(call.args[0].value) == name:
                yield call.args[1].value
            return
        given = keyword_argument(call, name)
        if given is not None:
            yield given

    def _fields(self, node: cst.Attribute) -> Iterator[cst.BaseExpression]:
        """Yield what is stored in the attribute ``node`` of the same objects."""
        keys = set(self.solved.keys(node))
        for each in self.solved.index.nodes:
            if isinstance(each, cst.Assign):
                for target in each.targets:
                    if isinstance(target.target, cst.Attribute) and keys & set(self.solved.keys(target.target)):
                        yield each.value

    def _of_name(self, node: cst.Name) -> str | None:
        parents = self.solved.index.parent
        found: list[cst.BaseExpression | None] = []
        for binder in self.solved.names.binders(node.value, self.solved.index.scope(node)):
            if isinstance(binder, cst.Param):
                found += self._passed(binder)
                continue
            statement = parents.get(parents.get(binder, binder))
            found.append(statement.value if isinstance(statement, cst.Assign) else None)
        return self._same(found)

    def _passed(self, param: cst.Param) -> list[cst.BaseExpression | None]:
        """Return what callers pass for ``param``; its default where nothing in this file calls the function."""
        parents = self.solved.index.parent
        function = parents.get(parents.get(param, param))
        if not isinstance(function, cst.FunctionDef):
            return [None]
        found: list[cst.BaseExpression | None] = []
        for call in self.solved.calls.get(function, ()):
            bound = dict(self.solved.functions_of(call)).get(function, False)
            found.append(dict(self.solved.arguments(call, function, bound)).get(param, param.default))
        option = _click_default(function, param.name.value)
        return found or [option if option is not None else param.default]


def _is_none(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value == "None"


def looked_up(node: cst.BaseExpression) -> tuple[str | None, cst.BaseExpression | None]:
    """Return the key and the fallback of ``cfg["key"]``, ``cfg.get("key", …)`` and ``getattr(cfg, "key", …)``."""
    if isinstance(node, cst.Subscript):
        return _key_of(node), None
    if not isinstance(node, cst.Call):
        return None, None
    args = [arg.value for arg in node.args if arg.keyword is None and not arg.star]
    if isinstance(node.func, cst.Name) and node.func.value == "getattr":
        args = args[1:]
    elif not (isinstance(node.func, cst.Attribute) and node.func.attr.value in ("get", "getenv")):
        return None, None
    return (text_of(args[0]) if args else None), (args[1] if len(args) > 1 else None)


def _key_of(node: cst.BaseExpression) -> str | None:
    """Return ``"key"`` of ``x["key"]``."""
    if not isinstance(node, cst.Subscript) or len(node.slice) != 1 or not isinstance(node.slice[0].slice, cst.Index):
        return None
    return text_of(node.slice[0].slice.value)


def _class_fields(node: cst.ClassDef, name: str) -> Iterator[cst.BaseExpression | None]:
    """Yield what a class gives to ``name`` in its body: ``class CFG: opt_level = "O1"``, also of a dataclass."""
    for line in node.body.body:
        for part in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(part, cst.Assign):
                targets = [each.target for each in part.targets]
            elif isinstance(part, cst.AnnAssign) and part.value is not None:
                targets = [part.target]
            else:
                continue
            if any(isinstance(each, cst.Name) and each.value == name for each in targets):
                is_field = isinstance(part.value, cst.Call) and dotted_name(part.value.func).endswith("field")
                yield keyword_argument(part.value, "default") if is_field else part.value  # type: ignore[arg-type]


def _click_default(function: cst.FunctionDef, name: str) -> cst.BaseExpression | None:
    """Return the ``default=`` of the ``@click.option`` that fills the parameter ``name``."""
    from .options import destination_of

    for each in function.decorators:
        call = each.decorator
        if isinstance(call, cst.Call) and dotted_name(call.func).endswith("option") and destination_of(call) == name:
            return keyword_argument(call, "default")
    return None
