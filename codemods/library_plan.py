"""What becomes of everything that a file uses of Apex besides amp's training loops: one plan, made once per file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterator, Sequence
from weakref import WeakKeyDictionary

import libcst as cst

from .apply import apply_edits
from .dropin import is_served
from .edits import AnyEdit, Edit, Site
from .findings import Kind, Level
from .library_families import TOGETHER, find_family
from .library_file import LibraryFile, torch_of
from .library_outcomes import Converts, Decide, Outcome, Stays, name_of
from .library_uses import Item, bound_otherwise
from .source_file import SourceFile
from .target import NATIVE
from .tree import walk

#: below ``amp``: they cast only while the drop-in's own casts are on
_NEED_AMP = ("amp.disable_casts", "amp.register_", "amp.float_", "amp.half_", "amp.bfloat16_", "amp.promote_")


@dataclass(frozen=True)
class LibraryPlan:
    """The plan of one file.

    Attributes:
        edits: (rule code, edit); none stands inside another one's node.
        converted: the nodes of the uses (``Use.node``) that no longer need the Apex name.
        sites: (rule code, site): notes, and what stays and why.
        needs_amp: the nodes of uses that stay and do nothing, or raise, unless ``amp.initialize`` of the drop-in ran.
            A loop that may reach one of them can't become native.
    """

    edits: tuple[tuple[str, AnyEdit], ...] = ()
    converted: frozenset[cst.CSTNode] = frozenset()
    sites: tuple[tuple[str, Site], ...] = ()
    needs_amp: frozenset[cst.CSTNode] = frozenset()


@dataclass
class _Decided:
    """A use, the rule that tells of it, the name that it counts under, and what becomes of it."""

    item: Item
    code: str
    group: str
    outcome: Outcome = field(default=None)


_plans: WeakKeyDictionary[SourceFile, LibraryPlan] = WeakKeyDictionary()


def library_plan(source: SourceFile) -> LibraryPlan:
    """Return the plan for ``source``; empty where nothing may become native."""
    if source not in _plans:
        _plans[source] = _plan(source)
    return _plans[source]


def reports_of(source: SourceFile, code: str) -> Iterator[AnyEdit | Site]:
    """Yield the edits and sites of one rule."""
    plan = library_plan(source)
    yield from (edit for each, edit in plan.edits if each == code)
    yield from (site for each, site in plan.sites if each == code)


def _plan(source: SourceFile) -> LibraryPlan:
    if source.target.to != NATIVE or source.own_apex:
        return LibraryPlan()
    file = LibraryFile(source)
    decided = [each for item in file.items for each in _decided(item, file) if source.is_wanted(each.code)]
    _keep_together(decided)
    convert = [each for each in decided if isinstance(each.outcome, Converts) and _may(each.outcome, source)]
    torch = torch_of(source)
    edits: list[tuple[str, Edit]] = []
    for each in convert:
        assert isinstance(each.outcome, Converts)
        makes = [each.outcome.make, *([each.outcome.also] if each.outcome.also is not None else [])]
        edits += [(each.code, make.edit(torch)) for make in makes]
    done = {each.item.node for each in convert if isinstance(each.outcome, Converts) and each.outcome.is_done}
    return LibraryPlan(
        tuple(_flattened(edits)),
        frozenset(done),
        tuple(_sites(decided, source)),
        frozenset(each.item.node for each in decided if each.item.path.startswith(_NEED_AMP)) - done,
    )


def _may(outcome: Converts, source: SourceFile) -> bool:
    return outcome.level is Level.SAFE or source.target.level is Level.REVIEW


def _decided(item: Item, file: LibraryFile) -> Iterator[_Decided]:
    found = find_family(item.path)
    if found is None or not is_served(item.path):
        return
    known, code, decide = found
    yield _Decided(item, code, TOGETHER.get(known, known), _outcome(item, file, decide))


def _outcome(item: Item, file: LibraryFile, decide: Decide) -> Outcome:
    """What ``decide`` says, unless the name isn't only Apex's or torch can't be named here."""
    name = name_of(item)
    written = next((each for each in file.items if each.is_written and _reaches(each.path, item.path)), None)
    if written is not None:
        message = f"{name} stays on the drop-in: the file puts something else in its place"
        return Stays(message, because=written.node, holds=True)
    outcome = decide(item, file)
    other = bound_otherwise(item, file.names)
    if other is not None and not (isinstance(outcome, Converts) and outcome.stands_alone):
        return Stays(f"{name} stays on the drop-in: its name has another meaning too", because=other, holds=True)
    if not isinstance(outcome, Converts):
        return outcome
    if file.torch_is_hidden(item.use.scope):
        return Stays(f"{name} stays on the drop-in: the name for torch means something else here")
    if outcome.make.node is item.call and _reaches_amp(item.call, item, file):
        return Stays(f"{name} stays on the drop-in: amp is called among its arguments")
    return outcome


def _reaches(path: str, other: str) -> bool:
    """Whether writing to ``path`` can change what ``other`` is: one of them lies at or under the other."""
    return f"{other}.".startswith(f"{path}." if path else "") or path.startswith(f"{other}.")


def _reaches_amp(call: cst.CSTNode, item: Item, file: LibraryFile) -> bool:
    amp = {each.node for each in file.items if each.path.partition(".")[0] == "amp" and each.node is not item.node}
    return any(node in amp for node in walk(call))


def _keep_together(decided: Sequence[_Decided]) -> None:
    """Where one use holds a name on the drop-in, let its other uses stay too."""
    holding: dict[str, cst.CSTNode] = {}
    for each in decided:
        if isinstance(each.outcome, Stays) and each.outcome.holds:
            holding.setdefault(each.group, each.item.node)
    for each in decided:
        if each.group in holding and isinstance(each.outcome, Converts) and not each.outcome.stands_alone:
            message = f"{name_of(each.item)} stays on the drop-in, because another use of it does"
            each.outcome = Stays(message, because=holding[each.group])


def _sites(decided: Sequence[_Decided], source: SourceFile) -> Iterator[tuple[str, Site]]:
    said: set[str] = set()
    for each in decided:
        outcome, node = each.outcome, each.item.node
        if isinstance(outcome, Converts) and not _may(outcome, source):
            message = f"{name_of(each.item)} stays on the drop-in without review"
            yield each.code, Site(node, message, outcome.note, kind=Kind.REVIEW)
        elif isinstance(outcome, Converts) and outcome.note:
            yield each.code, Site(node, outcome.note, outcome.advice, kind=Kind.NOTE)
        elif isinstance(outcome, Stays) and outcome.message not in said:
            said.add(outcome.message)
            yield each.code, Site(node, outcome.message, outcome.advice, outcome.because, Kind.DROPIN)


def _flattened(edits: Sequence[tuple[str, Edit]]) -> Iterator[tuple[str, AnyEdit]]:
    """Make the edits that stand inside another's node a part of that one's replacement."""
    nodes = {edit.node for _, edit in edits}
    inside: set[cst.CSTNode] = set()
    for _, edit in edits:
        inside.update(node for node in walk(edit.node) if node in nodes and node is not edit.node)
    for code, edit in edits:
        if edit.node in inside:
            continue
        inner = [other for _, other in edits if other.node in inside]
        yield code, Edit(edit.node, tuple(with_edits(node, inner) for node in edit.replacement)) if inner else edit


def with_edits(node: cst.CSTNode, edits: Sequence[AnyEdit]) -> cst.CSTNode:
    """Return an expression or compound statement with those of ``edits`` made that stand in it.

    For whoever replaces a statement in which a library edit stands.
    """
    there = set(walk(node))
    mine = [edit for edit in edits if isinstance(edit, Edit) and edit.node in there and edit.node is not node]
    outer = [edit for edit in mine if not any(edit.node in set(walk(o.node)) for o in mine if o is not edit)]
    if not outer:
        return node
    holder: cst.BaseStatement
    if isinstance(node, cst.BaseExpression):
        holder = cst.SimpleStatementLine([cst.Expr(node)])
    else:
        assert isinstance(node, cst.BaseCompoundStatement)
        holder = node
    nested = [Edit(e.node, tuple(with_edits(r, mine) for r in e.replacement)) for e in outer]
    new = apply_edits(cst.Module([holder]), nested).body[0]
    if isinstance(node, cst.BaseExpression):
        assert isinstance(new, cst.SimpleStatementLine) and isinstance(new.body[0], cst.Expr)
        return new.body[0].value
    return new
