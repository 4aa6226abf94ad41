"""What a native program no longer needs: imports of Apex, the ``try`` around them, flags, and tests of flags."""

from __future__ import annotations

import libcst as cst

from ..imports import STAR, ApexImport
from .availability import Availability, GuardedImport, guarded_imports
from .conditions import Conditions
from .draft import Draft
from .index import Index
from .solve import Solved
from .values import Apex

CODE = "AMP110"


class Cleanup:
    """Takes out what nothing reads any more, after all loops are written."""

    def __init__(
        self, index: Index, solved: Solved, conditions: Conditions, apex: tuple[ApexImport, ...], draft: Draft
    ) -> None:
        self.index = index
        self.solved = solved
        self.conditions = conditions
        self.apex = apex
        self.draft = draft
        self.guarded = guarded_imports(index, apex)
        self.availability = Availability(index, conditions)
        self._tests = self.availability.tests()
        self._in_tests = {node for test in self._tests for node in self.index.walk(test)}

    def run(self) -> set[cst.CSTNode]:
        """Write the clean-up and return the import aliases that go."""
        stored = self._stored_modules()
        going = {site for site in self.apex if site.imported != STAR and self._is_unread(site, stored)}
        if not any(self._was_used(site) for site in going):
            return set()
        for assign in stored:
            self.draft.remove(CODE, assign)
        kept_flags = self._guarded(going)
        self._imports(going)
        self._globals(going)
        self._settle_tests(going, kept_flags)
        self._absences(going)
        return {site.node for site in going}

    # -- who is still read -------------------------------------------------------------------------------------------

    def _reads(self, site: ApexImport) -> list[cst.CSTNode]:
        names = self.solved.names
        home = names.owner(site.binds, site.scope)
        return [use.node for use in names.uses.get(site.binds, ()) if names.owner(use.name, use.scope) is home]

    def _was_used(self, site: ApexImport) -> bool:
        return bool(self._reads(site))

    def _is_unread(self, site: ApexImport, stored: set[cst.CSTNode]) -> bool:
        for node in self._reads(site):
            if self._is_converted(node) or self.draft.is_gone(node):
                continue
            if node in self._in_tests and not self._is_called(node):
                continue
            if self.index.statement(node) in stored:
                continue
            return False
        return True

    def _is_converted(self, node: cst.CSTNode) -> bool:
        return node in self.draft.converted or any(each in self.draft.converted for each in self.index.ancestors(node))

    def _is_called(self, node: cst.CSTNode) -> bool:
        parent = self.index.parent.get(node)
        return isinstance(parent, cst.Call) and parent.func is node

    def _stored_modules(self) -> set[cst.CSTNode]:
        """``args.amp = amp``, where every read of ``args.amp`` is converted."""
        found: set[cst.CSTNode] = set()
        for node in self.index.nodes:
            if not isinstance(node, cst.Assign) or len(node.targets) != 1:
                continue
            target = node.targets[0].target
            values = self.solved.of(node.value)
            if not isinstance(target, cst.Attribute) or not values or not all(isinstance(v, Apex) for v in values):
                continue
            if all(self._is_converted(read) or read in self._in_tests for read in self._reads_of(target)):
                found.add(node)
        return found

    def _reads_of(self, target: cst.Attribute) -> list[cst.CSTNode]:
        keys = set(self.solved.keys(target))
        return [
            node
            for node in self.index.nodes
            if isinstance(node, cst.Attribute)
            and node.attr.value == target.attr.value
            and not isinstance(self.index.parent.get(node), cst.AssignTarget)
            and keys & set(self.solved.keys(node))
        ]

    # -- imports -----------------------------------------------------------------------------------------------------

    def _guarded(self, going: set[ApexImport]) -> set[str]:
        """Take out the ``try`` statements that only were for Apex. Return the flags that are still read."""
        kept: set[str] = set()
        for guarded in self.guarded:
            if not guarded.is_only_apex or not all(site in going for site in guarded.imports):
                kept |= guarded.flags
                continue
            flags = [flag for flag in sorted(guarded.flags) if self._flag_is_read(flag, guarded)]
            bound = {site.binds for site in guarded.imports}
            flags = [flag for flag in flags if flag not in bound]
            if flags:
                lines = [cst.parse_statement(f"{flag} = True\n") for flag in flags]
                lines[0] = lines[0].with_changes(leading_lines=guarded.node.leading_lines)
                self.draft.replace(CODE, guarded.node, *lines)
            else:
                self.draft.removed_blocks[guarded.node] = CODE
            self.draft.dropped.update([guarded.node.body, *guarded.node.handlers])
        return kept

    def _flag_is_read(self, flag: str, guarded: GuardedImport) -> bool:
        for use in self.solved.names.uses.get(flag, ()):
            if use.node in self._in_tests or self.draft.is_gone(use.node):
                continue
            if not self.index.holds(guarded.node, use.node):
                return True
        return "__all__" in self.solved.names.module.binders

    def _imports(self, going: set[ApexImport]) -> None:
        nodes = {site.node for site in going}
        for statement in dict.fromkeys(site.statement for site in going):
            if self.draft.is_gone(statement):
                continue
            assert not isinstance(statement.names, cst.ImportStar)
            stays = [alias not in nodes for alias in statement.names]
            if not any(stays):
                self.draft.remove(CODE, statement)

    def _globals(self, going: set[ApexImport]) -> None:
        names = {site.binds for site in going}
        for node in self.index.nodes:
            if not isinstance(node, cst.Global) or not any(item.name.value in names for item in node.names):
                continue
            left = [item for item in node.names if item.name.value not in names]
            if left:
                left[-1] = left[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
                self.draft.replace(CODE, node, node.with_changes(names=left))
            else:
                self.draft.remove(CODE, node)

    def _absences(self, going: set[ApexImport]) -> None:
        """``amp = None`` where a flag is off: nothing asks for it any more."""
        for site in going:
            home = self.solved.names.owner(site.binds, site.scope)
            for binder in home.binders.get(site.binds, ()):
                target = self.index.parent.get(binder)
                if isinstance(target, cst.Del) and not self.draft.is_gone(target):
                    self.draft.remove(CODE, target)
                line = self.index.parent.get(target) if isinstance(target, cst.AssignTarget) else None
                if not isinstance(line, cst.Assign) or len(line.targets) != 1 or self.draft.is_gone(line):
                    continue
                if isinstance(line.value, cst.Name) and line.value.value == "None":
                    self.draft.remove(CODE, line)

    # -- tests -------------------------------------------------------------------------------------------------------

    def _settle_tests(self, going: set[ApexImport], kept_flags: set[str]) -> None:
        gone = {site.binds for site in going} | {
            flag for each in self.guarded for flag in each.flags if flag not in kept_flags
        }
        for test in self._tests:
            if self.draft.is_gone(test) or not self._asks_only_for(test, gone):
                continue
            settled = self.availability.simplified(test)
            parent = self.index.parent.get(test)
            if isinstance(parent, cst.If) and test is parent.test:
                self._settle_if(parent, settled)
            elif isinstance(settled, bool):
                self.draft.replace(CODE, test, cst.Name(str(settled)))
            elif settled is not test:
                self.draft.replace(CODE, test, settled)

    def _asks_only_for(self, test: cst.BaseExpression, gone: set[str]) -> bool:
        for node in self.index.walk(test):
            if isinstance(node, cst.Name) and node.value in self.conditions.available and node.value not in gone:
                return False
        return True

    def _settle_if(self, node: cst.If, settled: cst.BaseExpression | bool) -> None:
        is_collapsed = any(getattr(edit, "node", None) is node for _, edit in self.draft.edits)
        if is_collapsed:
            return
        if not isinstance(settled, bool):
            if settled is not node.test:
                self.draft.replace(CODE, node.test, settled)
            return
        is_elif = isinstance(self.index.parent.get(node), cst.If)
        if is_elif or (not settled and isinstance(node.orelse, cst.If)):
            self.draft.replace(CODE, node.test, cst.Name(str(settled)))
        elif settled:
            self.draft.unwrap(CODE, node, node.body)
            if node.orelse is not None:
                self.draft.dropped.add(node.orelse)
        elif isinstance(node.orelse, cst.Else):
            self.draft.unwrap(CODE, node, node.orelse.body)
            self.draft.dropped.add(node.body)
        else:
            self.draft.removed_blocks[node] = CODE
