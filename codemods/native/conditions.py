"""Whether two tests are the same condition, and what is known of one when others hold.

A test is compared by what it reads, not by how it is spelled: a parameter is what its only caller passes, a name that
is bound once is what it is bound to.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Callable, Iterable, Mapping

import libcst as cst

from ..tree import walk
from .index import Index, code_of
from .solve import Solved
from .values import Apex, Instance

_OPERATORS: Mapping[type, tuple[str, Callable[[float, float], bool]]] = {
    cst.Equal: ("==", operator.eq),
    cst.NotEqual: ("!=", operator.ne),
    cst.LessThan: ("<", operator.lt),
    cst.LessThanEqual: ("<=", operator.le),
    cst.GreaterThan: (">", operator.gt),
    cst.GreaterThanEqual: (">=", operator.ge),
}
_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<", "is": "is not", "is not": "is"}
_DEEPEST = 8


@dataclass(frozen=True)
class Atom:
    """A test without ``and``, ``or`` and ``not``, and whether it is true: ``left op right``, or ``left`` alone."""

    left: str
    op: str = ""
    right: str = ""
    truth: bool = True

    @property
    def number(self) -> float | None:
        """The number on the right, if there is one."""
        try:
            return float(self.right)
        except ValueError:
            return None

    def negated(self) -> Atom:
        """Return the atom that is true when this one isn't."""
        if self.op in _OPPOSITE:
            return Atom(self.left, _OPPOSITE[self.op], self.right)
        return Atom(self.left, self.op, self.right, not self.truth)


class Conditions:
    """Canonical forms of the tests of one file. ``available`` are names that say whether Apex could be imported."""

    def __init__(self, solved: Solved, available: frozenset[str]) -> None:
        self.solved = solved
        self.index: Index = solved.index
        self.available = available
        self._stores = self._attribute_stores()

    # -- reading a test ------------------------------------------------------------------------------------------

    def conjuncts(self, test: cst.BaseExpression, truth: bool = True) -> list[Atom]:
        """Return atoms that all hold when ``test`` has the given truth."""
        test = _unwrapped(test)
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            return self.conjuncts(test.expression, not truth)
        if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And if truth else cst.Or):
            return self.conjuncts(test.left, truth) + self.conjuncts(test.right, truth)
        atom = self.atom(test)
        return [atom if truth else atom.negated()]

    def atom(self, test: cst.BaseExpression) -> Atom:
        """Return ``test``, which has no ``not``, as an atom."""
        if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
            target = test.comparisons[0]
            right = self.text(target.comparator)
            if isinstance(target.operator, cst.Is):
                return Atom(self.text(test.left), "is", right)
            if isinstance(target.operator, cst.IsNot):
                return Atom(self.text(test.left), "is not", right)
            for kind, (op, _) in _OPERATORS.items():
                if isinstance(target.operator, kind):
                    return Atom(self.text(test.left), op, right)
        return Atom(self.text(test))

    def truth(self, test: cst.BaseExpression, facts: Iterable[Atom]) -> bool | None:
        """Return what ``test`` is when all of ``facts`` hold; None if they don't say."""
        test = _unwrapped(test)
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            inner = self.truth(test.expression, facts)
            return None if inner is None else not inner
        if isinstance(test, cst.BooleanOperation):
            parts = (self.truth(test.left, facts), self.truth(test.right, facts))
            decisive = isinstance(test.operator, cst.Or)
            if decisive in parts:
                return decisive
            return None if None in parts else not decisive
        if self.is_availability(test):
            return not self._asks_for_absence(test)
        if isinstance(test, cst.Name) and test.value in ("True", "False"):
            return test.value == "True"
        return _follows(self.atom(test), list(facts))

    def is_availability(self, test: cst.BaseExpression) -> bool:
        """Return whether ``test`` asks whether Apex could be imported: ``HAS_APEX``, ``amp is not None``, ``amp``."""
        subject = test.left if isinstance(test, cst.Comparison) else test
        if isinstance(test, cst.Comparison):
            target = test.comparisons[0]
            if len(test.comparisons) != 1 or not isinstance(
                target.operator, (cst.Is, cst.IsNot, cst.Equal, cst.NotEqual)
            ):
                return False
            if not (isinstance(target.comparator, cst.Name) and target.comparator.value in ("None", "True", "False")):
                return False
        if isinstance(subject, cst.Name) and subject.value in self.available:
            scope = self.index.scope(subject)
            return self.solved.names.owner(subject.value, scope) is self.solved.names.module
        values = self.solved.of(subject)
        is_apex = bool(values) and all(isinstance(value, Apex) for value in values)
        return is_apex and self._is_always_apex(subject)

    def _is_always_apex(self, subject: cst.BaseExpression) -> bool:
        """Return whether nothing else is ever put where ``subject`` is read: ``amp = None`` says that a flag is off."""
        if isinstance(subject, cst.Name):
            scope = self.index.scope(subject)
            binders = self.solved.names.binders(subject.value, scope)
            return all(isinstance(each, cst.ImportAlias) for each in binders) or subject.value in self.available
        if isinstance(subject, cst.Attribute):
            stored = [value for value in self._stored(subject) if value is not None]
            return len(stored) == self.stores_of(subject) and all(
                isinstance(value, (cst.Name, cst.Attribute)) and self.is_availability(value) for value in stored
            )
        return False

    @staticmethod
    def _asks_for_absence(test: cst.BaseExpression) -> bool:
        if not isinstance(test, cst.Comparison):
            return False
        target = test.comparisons[0]
        comparator = target.comparator
        negative = isinstance(target.operator, (cst.IsNot, cst.NotEqual))
        is_absent = isinstance(comparator, cst.Name) and comparator.value in ("None", "False")
        return is_absent is not negative

    # -- canonical texts -----------------------------------------------------------------------------------------

    def text(self, node: cst.BaseExpression, depth: int = 0) -> str:
        """Return a text that is equal for expressions that read the same."""
        node = _unwrapped(node)
        if depth > _DEEPEST:
            return code_of(node)
        if isinstance(node, cst.Name):
            return self._name(node, depth)
        if isinstance(node, cst.Attribute):
            return self._attribute(node, depth)
        if isinstance(node, cst.Subscript) and _is_key(node):
            return f"{self.text(node.value, depth + 1)}[{code_of(node.slice[0])}]"
        if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
            return f"-{self.text(node.expression, depth + 1)}"
        if isinstance(node, cst.Comparison):
            parts = [self.text(node.left, depth + 1)]
            for each in node.comparisons:
                parts += [type(each.operator).__name__, self.text(each.comparator, depth + 1)]
            return " ".join(parts)
        if isinstance(node, (cst.BooleanOperation, cst.BinaryOperation)):
            left, right = self.text(node.left, depth + 1), self.text(node.right, depth + 1)
            return f"({left} {type(node.operator).__name__} {right})"
        if isinstance(node, cst.UnaryOperation):
            return f"{type(node.operator).__name__} {self.text(node.expression, depth + 1)}"
        return code_of(node)

    def _name(self, node: cst.Name, depth: int) -> str:
        if node.value in ("None", "True", "False"):
            return node.value
        scope = self.index.scope(node)
        owner = self.solved.names.owner(node.value, scope)
        binders = owner.binders.get(node.value, [])
        if len(binders) == 1:
            origin = self._origin(binders[0])
            if origin is not None:
                return self.text(origin, depth + 1)
        return f"{node.value}@{id(owner)}"

    def _origin(self, binder: cst.CSTNode) -> cst.BaseExpression | None:
        """Return the one expression that the only binding of a name takes its value from."""
        parent = self.index.parent.get(binder)
        if isinstance(binder, cst.Param):
            return self._only_argument(binder)
        if isinstance(parent, cst.AssignTarget):
            statement = self.index.parent[parent]
            if isinstance(statement, cst.Assign) and _is_simple(statement.value):
                return statement.value
        return None

    def _only_argument(self, param: cst.Param) -> cst.BaseExpression | None:
        function = self.index.parent[self.index.parent[param]]
        if not isinstance(function, cst.FunctionDef) or function in self.solved.handed_on:
            return None
        given = []
        for call in self.solved.calls.get(function, ()):
            bound = dict(self.solved.functions_of(call)).get(function, False)
            pairs = dict(self.solved.arguments(call, function, bound))
            if param not in pairs:
                return param.default
            given.append(pairs[param])
        if len(given) == 1 or (given and len({self.text(each, 4) for each in given}) == 1):
            return given[0]
        return None

    def _attribute(self, node: cst.Attribute, depth: int) -> str:
        owners = {v.node for v in self.solved.of(node.value) if isinstance(v, Instance)}
        families = {self.solved.classes.family(owner) for owner in owners}
        if len(families) == 1:
            family = next(iter(families))
            stores = self._stores.get((family, node.attr.value), [])
            if len(stores) == 1 and stores[0] is not None and _is_simple(stores[0]):
                return self.text(stores[0], depth + 1)
            return f"{family.name.value}.{node.attr.value}"
        return f"{self.text(node.value, depth + 1)}.{node.attr.value}"

    def _attribute_stores(self) -> dict[tuple[object, str], list[cst.BaseExpression | None]]:
        found: dict[tuple[object, str], list[cst.BaseExpression | None]] = {}
        for node in self.index.nodes:
            if isinstance(node, cst.Assign):
                for target in node.targets:
                    self._note_stores(target.target, node.value, found)
            elif isinstance(node, (cst.AnnAssign, cst.AugAssign, cst.For)):
                self._note_stores(node.target, node.value if isinstance(node, cst.AnnAssign) else None, found)
        return found

    def _note_stores(
        self,
        target: cst.CSTNode,
        value: cst.BaseExpression | None,
        found: dict[tuple[object, str], list[cst.BaseExpression | None]],
    ) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            display = value if isinstance(value, (cst.Tuple, cst.List)) else None
            is_even = display is not None and len(display.elements) == len(target.elements)
            for place, element in enumerate(target.elements):
                part = display.elements[place].value if display is not None and is_even else None
                self._note_stores(element.value, part, found)
        elif isinstance(target, cst.Attribute):
            owners = {
                self.solved.classes.family(v.node) for v in self.solved.of(target.value) if isinstance(v, Instance)
            }
            for owner in _or_none(owners):
                found.setdefault((owner, target.attr.value), []).append(value)

    def _stored(self, attribute: cst.Attribute) -> list[cst.BaseExpression | None]:
        owners = {
            self.solved.classes.family(v.node) for v in self.solved.of(attribute.value) if isinstance(v, Instance)
        }
        found: list[cst.BaseExpression | None] = []
        for owner in _or_none(owners):
            found += self._stores.get((owner, attribute.attr.value), [])
        return found

    def stores_of(self, attribute: cst.Attribute) -> int:
        """Return how many statements store to the attribute that ``attribute`` reads."""
        owners = {
            self.solved.classes.family(v.node) for v in self.solved.of(attribute.value) if isinstance(v, Instance)
        }
        return sum(len(self._stores.get((owner, attribute.attr.value), ())) for owner in _or_none(owners))


def _unwrapped(test: cst.BaseExpression) -> cst.BaseExpression:
    """Return the inside of ``bool(…)``."""
    while (
        isinstance(test, cst.Call)
        and isinstance(test.func, cst.Name)
        and test.func.value == "bool"
        and len(test.args) == 1
    ):
        test = test.args[0].value
    return test


def _is_key(node: cst.Subscript) -> bool:
    """``cfg["fp16"]``"""
    where = node.slice[0].slice if len(node.slice) == 1 else None
    return isinstance(where, cst.Index) and isinstance(where.value, cst.SimpleString)


def _is_simple(node: cst.BaseExpression) -> bool:
    """Return whether an expression only reads names, attributes and literals."""
    return not any(
        isinstance(each, (cst.Call, cst.Lambda, cst.BaseComp, cst.Subscript, cst.Await, cst.Yield))
        for each in walk(node)
    ) and not isinstance(node, (cst.Tuple, cst.List, cst.Dict, cst.Set))


def _follows(query: Atom, facts: list[Atom]) -> bool | None:
    if query in facts:
        return True
    if query.negated() in facts:
        return False
    if any(_excludes(fact, query) for fact in facts):
        return query.op == "!="
    known = [fact for fact in facts if fact.left == query.left and fact.op and fact.number is not None]
    if query.number is None or not query.op or not known:
        return None
    return _over_samples(query, known)


def _excludes(fact: Atom, query: Atom) -> bool:
    """What is one string isn't another one."""
    if fact.left != query.left or fact.op != "==" or query.op not in ("==", "!="):
        return False
    return _is_text(fact.right) and _is_text(query.right) and fact.right.strip("\"'") != query.right.strip("\"'")


def _is_text(text: str) -> bool:
    return len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" and "\\" not in text


def _over_samples(query: Atom, known: list[Atom]) -> bool | None:
    """Try numbers at and around every bound: order comparisons change nowhere else."""
    compare = dict(_OPERATORS.values())
    bounds = [each.number for each in (*known, query) if each.number is not None]
    samples = {bound + shift for bound in bounds for shift in (-1.0, -0.5, 0.0, 0.5, 1.0)}
    possible = [x for x in samples if all(compare[f.op](x, f.number or 0.0) for f in known if f.op in compare)]
    if query.op not in compare:
        return None
    answers = {compare[query.op](x, query.number or 0.0) for x in possible}
    return answers.pop() if len(answers) == 1 else None


def _or_none(owners: set[cst.ClassDef]) -> list[cst.ClassDef | None]:
    return [*owners] if owners else [None]
