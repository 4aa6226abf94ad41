"""Which statements go under autocast: what computes a loss, cut wherever gradients or weights change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Iterator, Sequence

import libcst as cst

from ..tree import children
from .computing import Computing
from .hoisting import Hoisted, hoistable
from .index import Index, code_of
from .kinds import Kinds
from .loop_shapes import is_no_grad, is_no_grad_call
from .operations import KEEPS_PRECISION
from .problem import CannotFollow
from .slices import Slice, Slices
from .states import Event
from .values import Apex, Imported

_CUTS = frozenset(Event) - {Event.NEW}
_MOST_ROUNDS = 6
_COMPOUND = (cst.For, cst.While, cst.If, cst.With, cst.Try, cst.TryStar)


@dataclass(frozen=True)
class Region:
    """Consecutive lines of one block, from ``first`` to ``last``, that go under autocast together."""

    first: cst.BaseStatement
    last: cst.BaseStatement


class Regions:
    """Finds the regions of the losses of one training loop."""

    def __init__(self, index: Index, kinds: Kinds, slices: Slices, computing: Computing) -> None:
        self.index = index
        self.kinds = kinds
        self.slices = slices
        self.computing = computing
        self._is_cut: dict[cst.CSTNode, bool] = {}
        #: statements on the way to the loss: a region goes on over those that follow it at once
        self._tail: set[cst.CSTNode] = set()
        #: losses that are computed where they are passed on: (statement, argument)
        self.hoisted: list[Hoisted] = []

    def of(self, losses: Iterable[cst.BaseExpression]) -> list[Region]:
        """Return the regions that compute ``losses``, in source order.

        Raises CannotFollow where a region would have to hold what it mustn't.
        """
        leaves: set[cst.CSTNode] = set()
        self._tail, self.hoisted = set(), []
        for loss in losses:
            if self.computing.computes(loss):
                self._check(self.index.statement(loss), of_loss=True)
            found = self.slices.of(loss)
            leaves |= {each for each in found.statements if self._is_leaf(each)}
            self._tail |= {each for each in found.statements if not isinstance(each, (cst.For, cst.CompFor))}
            self._check_arguments(found)
        leaves = self._without_data(self._without_covered(leaves))
        for _ in range(_MOST_ROUNDS):
            regions = list(self._place(leaves))
            more = self._uses_of_half(regions) - leaves
            if not more:
                return regions
            leaves |= more
        raise CannotFollow("what becomes of half-precision values can't be followed", self.index.module, 20)

    def evaluation(self) -> list[Region]:
        """Return the regions of evaluation: what computes under ``torch.no_grad()``, also as a decorator."""
        regions: list[Region] = []
        for node in self.index.nodes:
            if (
                isinstance(node, cst.With)
                and is_no_grad(node)
                or isinstance(node, cst.FunctionDef)
                and any(is_no_grad_call(d.decorator) for d in node.decorators)
            ):
                regions += self._evaluated(node.body)
        return regions

    def _evaluated(self, body: cst.BaseSuite) -> list[Region]:
        leaves = [
            statement
            for statement in self.index.walk(body)
            if isinstance(statement, (cst.Assign, cst.AugAssign, cst.AnnAssign, cst.Expr, cst.Return))
            and self.computing.computes(statement)
            and not isinstance(self.index.block(statement), cst.SimpleStatementSuite)
        ]
        return list(self._in_block(body, leaves))

    # -- what has to be inside -------------------------------------------------------------------------------------

    def _is_leaf(self, statement: cst.CSTNode) -> bool:
        if isinstance(statement, (cst.For, cst.CompFor)):
            return False  # what a loop goes over is data
        if self._only_passes_on(statement) or self._differentiates(statement) or self._initializes(statement):
            return False
        return self.computing.computes(statement)

    def _initializes(self, statement: cst.CSTNode) -> bool:
        for call in self.index.walk(statement):
            if isinstance(call, cst.Call) and any(isinstance(v, Apex) for v in self.slices.solved.of(call.func)):
                return True
        return False

    def _only_passes_on(self, statement: cst.CSTNode) -> bool:
        """A call that runs a backward or a step gets the loss as an argument; it isn't what computes it."""
        return bool(self.kinds.of(statement) & {Event.SCALED_BACKWARD, Event.PLAIN_BACKWARD, Event.STEP})

    def _check_arguments(self, found: Slice) -> None:
        """What a caller computes for a function that runs backward would have to be a statement of its own."""
        for statement, argument in found.arguments:
            if self._only_passes_on(statement) and self.computing.involves_model(argument):
                self._hoist(statement, argument)

    def _hoist(self, statement: cst.CSTNode, argument: cst.CSTNode) -> None:
        """``update(criterion(model(x), y))``: the loss gets a statement of its own in front of that one."""
        hoisted = hoistable(statement, argument, self.index)
        if hoisted is None:
            why = f"`{code_of(argument)}` is computed where it's passed on to a function that runs backward"
            raise CannotFollow(why, argument, 19)
        if self.computing.changes_weights(argument):
            raise CannotFollow("what computes the loss changes weights as well", argument, 19)
        self.hoisted.append(hoisted)

    def _without_data(self, leaves: set[cst.CSTNode]) -> set[cst.CSTNode]:
        """Drop what only makes data, unless it stands in one block with what the model computes."""
        core = {leaf for leaf in leaves if self.computing.involves_model(leaf)}
        if not core:
            return leaves
        for leaf in leaves - core:
            if self.slices.of(self._taken(leaf)).statements & core:
                core.add(leaf)
        blocks = {self.index.block(self.index.line(leaf)) for leaf in core}
        near = {leaf for leaf in leaves - core if self.index.block(self.index.line(leaf)) in blocks}
        return core | {leaf for leaf in near if self.computing.lowers(leaf)}

    @staticmethod
    def _taken(statement: cst.CSTNode) -> cst.BaseExpression:
        value = getattr(statement, "value", None)
        return value if isinstance(value, cst.BaseExpression) else cst.Tuple([])

    def _without_covered(self, leaves: set[cst.CSTNode]) -> set[cst.CSTNode]:
        """Drop what stands in functions that are only called from inside other leaves."""
        solved = self.slices.solved
        while True:
            covered = set()
            for leaf in leaves:
                function = self.index.function(leaf)
                calls = solved.calls.get(function, set()) if function is not None else set()
                others = leaves - {leaf}
                is_handed_on = function in solved.handed_on
                if calls and not is_handed_on and all(self._runs_inside(call, others, ()) for call in calls):
                    covered.add(leaf)
            if not covered:
                return leaves
            leaves = leaves - covered

    def _runs_inside(self, call: cst.CSTNode, leaves: set[cst.CSTNode], path: tuple[cst.CSTNode, ...]) -> bool:
        """Return whether ``call`` runs inside of a leaf, through whatever calls its function; evaluation aside."""
        if any(self.index.holds(leaf, call) for leaf in leaves):
            return True
        function = self.index.function(call)
        calls = self.slices.solved.calls.get(function, set()) if function is not None else set()
        if function is None or function in path or function in self.slices.solved.handed_on:
            return False
        trains = [each for each in calls if not self._is_without_grad(each)]
        return bool(trains) and all(self._runs_inside(each, leaves, (*path, function)) for each in trains)

    def _is_without_grad(self, node: cst.CSTNode) -> bool:
        for outer in self.index.ancestors(node):
            if isinstance(outer, cst.With) and is_no_grad(outer):
                return True
            if isinstance(outer, cst.FunctionDef):
                return any(is_no_grad_call(each.decorator) for each in outer.decorators)
        return False

    # -- where regions stand -----------------------------------------------------------------------------------------

    def _place(self, leaves: set[cst.CSTNode]) -> Iterator[Region]:
        by_function: dict[cst.FunctionDef | None, list[cst.CSTNode]] = {}
        for leaf in leaves:
            by_function.setdefault(self.index.function(leaf), []).append(leaf)
        for function, mine in by_function.items():
            block = self.index.module if function is None else function.body
            yield from self._in_block(block, mine)

    def _in_block(self, block: cst.CSTNode, leaves: Sequence[cst.CSTNode]) -> Iterator[Region]:
        lines = list(getattr(block, "body", ()))
        marked = {line: [leaf for leaf in leaves if self.index.holds(line, leaf)] for line in lines}
        run: list[cst.CSTNode] = []
        between: list[cst.CSTNode] = []
        for line in lines:
            if not marked[line]:
                if run and not between and self._is_tail(line):
                    run.append(line)
                elif run:
                    between.append(line)
                    if self.is_cut(line):
                        yield self._region(run)
                        run, between = [], []
                continue
            if self._must_go_inside(line):
                if run:
                    yield self._region(run)
                run, between = [], []
                yield from self._inside(line, marked[line])
                continue
            self._check(line)
            run, between = [*run, *between, line], []
        if run:
            yield self._region(run)

    def _is_tail(self, line: cst.CSTNode) -> bool:
        """``loss = loss / steps``, also under an ``if``: autocast doesn't change it, but it reads better inside."""
        if self.is_cut(line) or isinstance(line, (cst.Try, cst.TryStar, cst.For, cst.While, cst.With, cst.FunctionDef)):
            return False
        return any(node in self._tail for node in self.index.walk(line))

    def _must_go_inside(self, line: cst.CSTNode) -> bool:
        return isinstance(line, _COMPOUND) and (self.is_cut(line) or isinstance(line, (cst.Try, cst.TryStar)))

    def _inside(self, line: cst.CSTNode, leaves: Sequence[cst.CSTNode]) -> Iterator[Region]:
        parts: list[cst.CSTNode] = []
        for child in children(line):
            if isinstance(child, (cst.Else, cst.Finally, cst.ExceptHandler, cst.ExceptStarHandler)):
                parts.append(child.body)
            elif isinstance(child, cst.BaseSuite):
                parts.append(child)
            elif isinstance(child, cst.If):  # elif
                yield from self._inside(child, [leaf for leaf in leaves if self.index.holds(child, leaf)])
        for part in parts:
            mine = [leaf for leaf in leaves if self.index.holds(part, leaf)]
            if mine and isinstance(part, cst.SimpleStatementSuite):
                raise CannotFollow("a region can't be put into a block that is written on one line", part, 19)
            yield from self._in_block(part, mine)

    def _region(self, run: Sequence[cst.CSTNode]) -> Region:
        first, last = run[0], run[-1]
        assert isinstance(first, cst.BaseStatement) and isinstance(last, cst.BaseStatement)
        return Region(first, last)

    def _check(self, line: cst.CSTNode, of_loss: bool = False) -> None:
        if of_loss:
            if self.computing.changes_weights(line):
                raise CannotFollow("what computes the loss changes weights as well", line, 19)
            return
        if self.computing.changes_weights(line):
            raise CannotFollow(
                "what computes the loss changes weights as well, and casts of weights are kept", line, 19
            )
        if self.is_cut(line):
            raise CannotFollow("what computes the loss also steps, clears or reads gradients", line, 19)
        if isinstance(line, (cst.FunctionDef, cst.ClassDef)):
            raise CannotFollow("the loss is computed by code that can't be followed", line, 19)

    def is_cut(self, line: cst.CSTNode) -> bool:
        """Return whether ``line`` may not stand in a region."""
        if line not in self._is_cut:
            self._is_cut[line] = (
                bool(self.kinds.of(line) & _CUTS) or self.computing.changes_weights(line) or self._differentiates(line)
            )
        return self._is_cut[line]

    def _differentiates(self, line: cst.CSTNode) -> bool:
        """``torch.autograd.grad`` in the statement itself; inside a function of the file it's harmless."""
        for node in self.index.walk(line):
            if isinstance(node, cst.Call):
                for value in self.slices.solved.of(node.func):
                    if isinstance(value, Imported) and value.path in ("torch.autograd.grad", "torch.func.grad"):
                        return True
            if isinstance(node, (cst.Yield, cst.Await)):
                return True
        return False

    # -- what leaves a region ------------------------------------------------------------------------------------------

    def _uses_of_half(self, regions: Sequence[Region]) -> set[cst.CSTNode]:
        """Return the statements outside that compute with what was bound inside: autocast was on there as well."""
        inside: set[cst.CSTNode] = set()
        for region in regions:
            inside.update(self.lines_of(region))
        found: set[cst.CSTNode] = set()
        functions = {self.index.function(region.first) for region in regions}
        for function in functions:
            found |= self._uses_in(self.index.module if function is None else function.body, inside, function)
        return found

    def lines_of(self, region: Region) -> list[cst.BaseStatement]:
        """Return the lines of a region."""
        lines = [each for each in self.index.block(region.first).body if isinstance(each, cst.BaseStatement)]
        return lines[lines.index(region.first) : lines.index(region.last) + 1]

    def _uses_in(
        self, body: cst.CSTNode, inside: set[cst.CSTNode], function: cst.FunctionDef | None
    ) -> set[cst.CSTNode]:
        names = {name for line in inside if self.index.function(line) is function for name in self._bound(line)}
        names |= self._passed_on(body, names, function)
        found: set[cst.CSTNode] = set()
        for use in self.index.walk(body):
            if not isinstance(use, cst.Name) or use.value not in names or self.index.function(use) is not function:
                continue
            if not self._is_read(use) or self._is_in(use, inside):
                continue
            taken = self._computing_around(use)
            if taken is None or not self._reached_from(use, inside, names):
                continue
            statement = self.index.statement(taken)
            if isinstance(statement, _COMPOUND) and self._stands_in_head(taken, statement):
                if not self.is_cut(statement):
                    found.add(statement)
                continue
            found.add(statement)
        return {each for each in found if not self._is_harmless(each)}

    def _passed_on(self, body: cst.CSTNode, names: set[str], function: cst.FunctionDef | None) -> set[str]:
        """Return the names that are bound outside to what is as half as ``names``: ``kept = output.detach()``."""
        found: set[str] = set()
        for node in self.index.walk(body):
            if not isinstance(node, cst.Assign) or self.index.function(node) is not function:
                continue
            reads = {n.value for n in self.index.walk(node.value) if isinstance(n, cst.Name)}
            if reads & (names | found) and not self.computing.computes(node.value):
                found |= {n.value for t in node.targets for n in self.index.walk(t.target) if isinstance(n, cst.Name)}
        return found - {"self"}

    def _is_harmless(self, statement: cst.CSTNode) -> bool:
        """What hands a loss on to a backward pass is no computation of its own."""
        return self._only_passes_on(statement) or self.is_cut(statement)

    def _bound(self, line: cst.CSTNode) -> set[str]:
        names = set()
        for node in self.index.walk(line):
            targets: list[cst.CSTNode] = []
            if isinstance(node, cst.Assign):
                targets = [target.target for target in node.targets]
            elif isinstance(node, (cst.AugAssign, cst.AnnAssign, cst.NamedExpr, cst.For)):
                targets = [node.target]
            for target in targets:
                names |= {n.value for n in self.index.walk(target) if isinstance(n, cst.Name)}
        return names

    def _is_read(self, use: cst.Name) -> bool:
        parent = self.index.parent.get(use)
        if isinstance(parent, (cst.AssignTarget, cst.Param, cst.FunctionDef, cst.ClassDef, cst.Del, cst.AsName)):
            return False
        if isinstance(parent, cst.Attribute) and parent.value is not use:
            return False
        return not (isinstance(parent, cst.Arg) and parent.keyword is use)

    def _is_in(self, node: cst.CSTNode, lines: set[cst.CSTNode]) -> bool:
        return any(each in lines for each in self.index.ancestors(node))

    def _computing_around(self, use: cst.CSTNode) -> cst.CSTNode | None:
        """Return the operation that takes ``use``, as half as it is, and depends on autocast; None if nothing does."""
        node = use
        while True:
            parent = self.index.parent.get(node)
            if isinstance(parent, cst.Arg):
                call = self.index.parent[parent]
                return call if isinstance(call, cst.Call) and self.computing.call_computes(call) else None
            if isinstance(parent, cst.Attribute) and parent.value is node:
                method = self.index.parent.get(parent)
                is_called = isinstance(method, cst.Call) and method.func is parent
                if is_called and isinstance(method, cst.Call) and self.computing.call_computes(method):
                    return method
                if parent.attr.value not in KEEPS_PRECISION or method is None:
                    return None
                node = method if is_called else parent
            elif isinstance(parent, cst.BinaryOperation):
                if isinstance(parent.operator, (cst.MatrixMultiply, cst.Power)):
                    return parent
                node = parent
            elif (
                isinstance(parent, cst.Subscript)
                and parent.value is node
                or isinstance(parent, (cst.Element, cst.StarredElement, cst.Tuple, cst.List, cst.UnaryOperation))
            ):
                node = parent
            else:
                return None

    def _reached_from(self, use: cst.Name, inside: set[cst.CSTNode], names: set[str]) -> bool:
        """Return whether a binding inside a region reaches ``use``, directly or through a name that passes it on."""
        for statement, source in self.slices.reaching(use.value, use):
            if statement in inside or self._is_in(statement, inside):
                return True
            if any(isinstance(n, cst.Name) and n.value in names for n in self.index.walk(source)):
                return True
        return False

    def _stands_in_head(self, node: cst.CSTNode, compound: cst.CSTNode) -> bool:
        for outer in self.index.ancestors(node):
            if outer is compound:
                return True
            if isinstance(outer, cst.BaseSuite):
                return False
        return False
