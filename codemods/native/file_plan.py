"""What becomes of the training loops of one file: one plan, made once, from which the rules take their edits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Iterator, Sequence

import libcst as cst

from ..edits import AnyEdit, Append, Edit, Insert, Site, Unwrap, Wrap
from ..findings import Kind
from ..imports import ApexImport, apex_imports
from ..library_plan import LibraryPlan, library_plan
from ..target import NATIVE
from ..tree import walk
from .added_imports import add_imports
from .availability import guarded_imports, only_set_there
from .blind_spots import check_blind_spots
from .cleanup import Cleanup
from .computing import Computing
from .conditions import Conditions
from .decide import decide
from .decision import Decision, Facts, NeedsReview
from .draft import Draft
from .emit import Emitter
from .events import Events
from .index import Index
from .initialization import READS_BOTH
from .kinds import Kinds
from .loop import Loop, loops_of
from .notes import loop_notes
from .objects import Entity, Objects
from .option_facts import OptionFact, option_facts
from .problem import CannotFollow
from .reach import Reach
from .regions import Regions
from .sites import Sites, find_sites
from .slices import Slices
from .solve import Solved
from .special_functions import SpecialFunctions
from .spelling import AUTOCAST_ANY_DEVICE, Spelling
from .values import ClassValue, Imported, Made

if TYPE_CHECKING:
    from ..source_file import SourceFile

LEFT, NEEDS_REVIEW = "AMP190", "AMP191"
_DATA_PARALLEL = {"torch.nn.DataParallel", "torch.nn.parallel.DataParallel"}
#: what Apex's amp hangs on the objects it is given
_PRIVATE = {"_amp_stash", "_amp_state"}


@dataclass(frozen=True)
class NativePlan:
    """Edits and sites by rule code, the import aliases that go, and what the file chooses its opt level by."""

    edits: tuple[tuple[str, AnyEdit], ...] = ()
    sites: tuple[tuple[str, Site], ...] = ()
    going: frozenset[cst.CSTNode] = frozenset()
    options: tuple[OptionFact, ...] = ()

    def reports_of(self, code: str) -> Iterator[AnyEdit | Site]:
        """Yield the edits and sites of one rule."""
        yield from (edit for each, edit in self.edits if each == code)
        yield from (site for each, site in self.sites if each == code)


def native_plan(source: SourceFile) -> NativePlan:
    """Return the plan for ``source``; empty where nothing is to become native."""
    if source.target.to != NATIVE or source.own_apex:
        return NativePlan()
    apex = apex_imports(source.names, moved=True)
    if not apex:
        return NativePlan()
    return _Planner(source, apex).plan()


class _Planner:
    def __init__(self, source: SourceFile, apex: tuple[ApexImport, ...]) -> None:
        self.source = source
        self.apex = apex
        self.index = Index(source.module, source.names)
        self.library: LibraryPlan = library_plan(source)
        self.solved = Solved(self.index, source.names, apex)
        self.objects = Objects(self.solved)
        self.sites: Sites = find_sites(self.index, self.solved, self.objects)
        self.conditions = Conditions(self.solved, only_set_there(guarded_imports(self.index, apex), source.names))
        self.torch = source.torch
        self.draft = Draft(self.index)
        self.draft.converted.update(self.library.converted)
        #: whether the functions that all loops share have been written
        self._has_special = False

    def plan(self) -> NativePlan:
        """Decide loop by loop, write those that can be native, and clean up."""
        loops = loops_of(self.sites)
        facts = self._facts(loops)
        for loop in loops:
            self._loop(loop, loops, facts)
        if not loops:
            self._without_loop()
        going: set[cst.CSTNode] = set()
        if not any(code in (LEFT, NEEDS_REVIEW) for code, _ in self.draft.sites) or self.draft.edits:
            going = Cleanup(self.index, self.solved, self.conditions, self.apex, self.draft).run()
        edits = self.draft.finished()
        for line, going_there in self._missing_imports(edits).items():
            edits += add_imports(self.source.module, [line], self.draft.removed if going_there else ())
        options = (fact for site in self.sites.initialize for fact in option_facts(site, self.solved))
        return NativePlan(tuple(edits), tuple(self.draft.sites), frozenset(going), tuple(options))

    def _missing_imports(self, edits: Sequence[tuple[str, AnyEdit]]) -> dict[str, bool]:
        """Return the import statements that the file lacks, and whether each goes where Apex was imported."""
        new = {name for _, edit in edits for name in _names_in(edit)}
        lines = {}
        if self.torch.needs_import and (self.torch.root in new or self.library.edits):
            lines["import torch"] = False
        if READS_BOTH in new:
            lines[f"from amp_migrate.convert import {READS_BOTH}"] = True
        return lines

    def _without_loop(self) -> None:
        """Say why amp stays where no loop can say it."""
        for problem in self.sites.problems:
            self._left(problem.node, problem)
        if not self.sites.problems:
            for node, path in self._other_uses():
                self._left(node, CannotFollow(f"`{path}` has no native counterpart", node))
                break

    def _facts(self, loops: list[Loop]) -> Facts:
        optimizers = tuple(each for loop in loops for each in loop.optimizers)
        reach = Reach(self.objects)
        models = {value for each in optimizers for value in reach.models_of(each)}
        for init in self.sites.initialize:
            models |= {value for each in init.model_expressions for value in self.objects.values(each)}
        events = Events(self.objects, reach, self.sites, optimizers, models)
        kinds = Kinds(events)
        slices = Slices(self.objects, models)
        computing = Computing(self.objects, slices)
        regions = Regions(self.index, kinds, slices, computing)
        return Facts(
            self.index,
            self.solved,
            events,
            kinds,
            slices,
            regions,
            self.conditions,
            self.source.target,
            optimizers,
            tuple(self._other_optimizers(optimizers)),
            tuple(self._entry_points()),
        )

    def _other_optimizers(self, optimizers: Sequence[Entity]) -> Iterator[Entity]:
        """Yield the optimizers of torch that amp never gets."""
        known = {each.value for each in optimizers}
        for call in self.index.nodes:
            if not isinstance(call, cst.Call) or self.objects.leader(Made(call)) in known:
                continue
            for value in self.solved.of(call.func):
                if isinstance(value, Imported) and value.path.startswith("torch.optim."):
                    name = value.path.rpartition(".")[2]
                    if name[:1].isupper() and "lr_scheduler" not in value.path and "swa" not in value.path:
                        yield Entity(self.objects.leader(Made(call)), name)
                elif isinstance(value, ClassValue) and self.solved.own_optimizers.is_one(value.node):
                    yield Entity(self.objects.leader(Made(call)), value.node.name.value)

    def _entry_points(self) -> Iterator[cst.FunctionDef]:
        for node in self.index.nodes:
            is_called = isinstance(node, cst.FunctionDef) and self.solved.calls.get(node)
            if isinstance(node, cst.FunctionDef) and (not is_called or node in self.solved.handed_on):
                yield node

    def _loop(self, loop: Loop, loops: list[Loop], facts: Facts) -> None:
        draft = Draft(self.index)
        try:
            self._check_file(loop, loops)
            check_blind_spots(loop, facts)
            decision = decide(loop, facts)
            spelling = Spelling(self.source.target, self.torch)
            self._check_torch(decision, spelling)
            Emitter(decision, facts, spelling, draft).emit()
            if not decision.is_plain and not self._has_special:
                SpecialFunctions(self.solved, facts.regions.computing, spelling, draft).emit()
            self._check_library(draft)
        except CannotFollow as missing:
            self._stays(loop, missing)
        except NeedsReview as review:
            self._needs_review(loop, review)
        else:
            self._merge(draft)
            self._has_special = self._has_special or not decision.is_plain
            self.draft.sites += loop_notes(decision, facts)

    def _check_file(self, loop: Loop, loops: list[Loop]) -> None:
        """What any loop of a file depends on."""
        partner = self.source.target.partner
        if partner:
            raise CannotFollow(
                f"it may reach into {partner}, and loops aren't followed across files yet", loop.first, 26
            )
        if self.sites.problems:
            raise self.sites.problems[0]
        if any(site.imported.endswith("*") for site in self.apex):
            raise CannotFollow("names come from Apex by `import *`", loop.first)
        if len(loops) > 1 and loop.scales:
            raise CannotFollow("a loss scale is asked for, and the file has several training loops", loop.first, 1)
        if len(loops) > 1 and any(call.entity is None for call in loop.calls):
            raise CannotFollow("amp's state is saved or loaded, and the file has several training loops", loop.first, 9)
        for node, path in self._other_uses():
            raise CannotFollow(f"the file also uses `{path}`, which only the drop-in has", node)
        for node in self.index.nodes:
            if isinstance(node, cst.Attribute) and node.attr.value in _PRIVATE and not self._is_explained(node, ""):
                raise CannotFollow(f"the file uses `{node.attr.value}`, what Apex keeps on an optimizer", node)
            if isinstance(node, cst.SimpleString) and node.evaluated_value in _PRIVATE:
                raise CannotFollow(f"the file asks for {node.value}, what Apex keeps on an optimizer", node)

    def _other_uses(self) -> Iterator[tuple[cst.CSTNode, str]]:
        """Yield the uses of amp that no loop explains."""
        names = self.source.names
        for site in self.apex:
            home = names.owner(site.binds, site.scope)
            for use in names.uses.get(site.binds, ()):
                if names.owner(use.name, use.scope) is not home or use.node in self.library.converted:
                    continue
                path = ".".join(filter(None, (site.stands_for, *use.attributes)))
                if path.partition(".")[0] not in ("amp", "fp16_utils", ""):
                    continue
                if not self._is_explained(use.node, path):
                    yield use.node, path

    def _is_explained(self, node: cst.CSTNode, path: str) -> bool:
        if node in self.library.needs_amp:
            return False
        if any(each in self.sites.explained for each in (node, *self.index.ancestors(node))):
            return True
        if isinstance(node, (cst.Name, cst.Attribute)) and path == "amp":
            parent = self.index.parent.get(node)
            is_stored = isinstance(parent, cst.Assign) and all(
                isinstance(target.target, cst.Attribute) for target in parent.targets
            )
            return is_stored or self._is_asked(node)
        return path == "" and self._is_asked(node)

    def _is_asked(self, node: cst.CSTNode) -> bool:
        parent = self.index.parent.get(node)
        while isinstance(parent, (cst.Comparison, cst.BooleanOperation, cst.UnaryOperation)):
            return True
        return isinstance(parent, (cst.If, cst.While, cst.IfExp, cst.Assert))

    def _check_torch(self, decision: Decision, spelling: Spelling) -> None:
        first = decision.loop.first
        spelling.check(first)
        if self.source.target.torch < AUTOCAST_ANY_DEVICE and self._has_data_parallel():
            raise CannotFollow("DataParallel needs autocast inside forward before torch 1.10; raise --torch", first, 24)
        functions = {decision.loop.initialize[0].function, *(self.index.function(r.first) for r in decision.regions)}
        for function in functions:
            scope = self.source.names.module if function is None else self.source.names.inside[function]
            if self.torch.is_shadowed(scope):
                raise CannotFollow("the name for torch means something else there", first)

    def _has_data_parallel(self) -> bool:
        return any(
            isinstance(value, Imported) and value.path in _DATA_PARALLEL
            for node in self.index.nodes
            if isinstance(node, cst.Call)
            for value in self.solved.of(node.func)
        )

    def _check_library(self, draft: Draft) -> None:
        """Another rule's edit inside a node that is replaced would be lost."""
        replaced = [edit.node for _, edit in draft.finished() if isinstance(edit, Edit)]
        for _, edit in self.library.edits:
            node = edit.node if isinstance(edit, (Edit, Unwrap)) else None
            if node is not None and any(self.index.holds(outer, node) for outer in replaced):
                raise CannotFollow("another part of Apex is used inside a call of amp", node)

    def _merge(self, draft: Draft) -> None:
        self.draft.edits += draft.edits
        self.draft.sites += draft.sites
        self.draft.converted |= draft.converted
        self.draft.removed.update(draft.removed)
        self.draft.removed_blocks.update(draft.removed_blocks)
        self.draft.dropped |= draft.dropped

    def _stays(self, loop: Loop, missing: CannotFollow) -> None:
        self._left(loop.first, missing)

    def _left(self, node: cst.CSTNode, missing: CannotFollow) -> None:
        rule = f" (soundness rule {missing.rule})" if missing.rule else ""
        self.draft.sites.append(
            (
                LEFT,
                Site(
                    node,
                    f"this training loop runs on the drop-in: {missing.message}{rule}",
                    "it trains as before; `--explain AMP190` says what native code would need",
                    None if missing.node in (self.index.module, node) else missing.node,
                    Kind.DROPIN,
                ),
            )
        )

    def _needs_review(self, loop: Loop, review: NeedsReview) -> None:
        why = "; ".join(dict.fromkeys(each.why for each in review.reviews))
        advice = "run again with `--level review` to make it native all the same"
        site = Site(loop.first, f"this training loop runs on the drop-in: {why}", advice, None, Kind.REVIEW)
        self.draft.sites.append((NEEDS_REVIEW, site))


def _names_in(edit: AnyEdit) -> set[str]:
    """Return the names in the code that an edit brings in."""
    parts: list[cst.CSTNode] = []
    if isinstance(edit, Edit):
        parts = list(edit.replacement)
    elif isinstance(edit, Insert):
        parts = [*edit.before, *edit.after]
    elif isinstance(edit, Wrap):
        parts = [edit.header]
    elif isinstance(edit, Append):
        parts = [edit.item]
    return {node.value for part in parts for node in walk(part) if isinstance(node, cst.Name)}
