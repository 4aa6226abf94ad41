"""Apply edits to a tree: only the nodes on the way to an edit are made anew, everything else is shared."""

from __future__ import annotations

from typing import Iterable, Sequence, Tuple, Union

import libcst as cst

from .comments import carried_lines, comment_line, is_pragma, joined_lines, without_blank_start, without_comment
from .edits import AnyEdit, Append, Edit, Insert, Unwrap, Wrap
from .layout import with_item
from .tree import code_fields, parents

Nodes = Tuple[cst.CSTNode, ...]
Block = Union[cst.Module, cst.IndentedBlock]


def apply_edits(module: cst.Module, edits: Sequence[AnyEdit]) -> cst.Module:
    """Return ``module`` with every edit made.

    Raises ValueError for edits that contradict each other: two of the same node, or one inside a node that is replaced.
    """
    new = _Rebuild(module, edits).node(module)
    assert isinstance(new[0], cst.Module)
    return new[0]


class _Rebuild:
    def __init__(self, module: cst.Module, edits: Sequence[AnyEdit]) -> None:
        replaced = [edit for edit in edits if isinstance(edit, (Edit, Unwrap))]
        self.replacements: dict[cst.CSTNode, Edit | Unwrap] = {edit.node: edit for edit in replaced}
        if len(self.replacements) < len(replaced):
            raise ValueError("two edits of the same node")
        self.inserts = _merged(edit for edit in edits if isinstance(edit, Insert))
        self.wraps: dict[cst.CSTNode, Wrap] = {edit.first: edit for edit in edits if isinstance(edit, Wrap)}
        self.appends: dict[cst.CSTNode, list[Append]] = {}
        for edit in edits:
            if isinstance(edit, Append):
                self.appends.setdefault(edit.node, []).append(edit)
        self.on_the_way = _ancestors(module, edits) | set(self.appends)
        if any(edit.node in self.on_the_way for edit in replaced if isinstance(edit, Edit)):
            raise ValueError("an edit inside another edit's node")

    def node(self, node: cst.CSTNode) -> Nodes:
        edit = self.replacements.get(node)
        if isinstance(edit, Edit):
            return edit.replacement
        if isinstance(edit, Unwrap):
            return self.unwrapped(edit)
        if node not in self.on_the_way:
            return (node,)
        if isinstance(node, cst.SimpleStatementLine):
            return self.line(node)
        if isinstance(node, (cst.Module, cst.IndentedBlock)):
            return (self.block(node),)
        new = node.with_changes(**{name: self.field(getattr(node, name)) for name in code_fields(node)})
        for append in self.appends.get(node, ()):
            new = with_item(new, append.item)
        return (new,)

    def field(self, value: object) -> object:
        if isinstance(value, cst.CSTNode):
            new = self.node(value)
            if not new and isinstance(value, cst.Else):
                return None
            if len(new) != 1:
                raise ValueError(f"{type(value).__name__} must become exactly one node, not {len(new)}")
            return new[0]
        if isinstance(value, (list, tuple)):
            if any(isinstance(item, cst.BaseSmallStatement) for item in value):
                return _joined(value, [self.small(item) for item in value]) or [cst.Pass()]
            return [new for item in value for new in (self.node(item) if isinstance(item, cst.CSTNode) else (item,))]
        return value

    def block(self, block: Block) -> cst.CSTNode:
        """Rebuild a block. Lines that lost their statement go to the next one, or to the end of the block."""
        body, carried = self.statements(block.body)
        if isinstance(block, cst.IndentedBlock):
            body = body or [cst.SimpleStatementLine([cst.Pass()])]
            if not self.node(block.body[0]):  # a block doesn't begin with the blank line that stood below what is gone
                body[0] = body[0].with_changes(leading_lines=without_blank_start(_leading(body[0])))
        return block.with_changes(body=body, footer=[*carried, *block.footer] if carried else block.footer)

    def statements(self, old: Sequence[cst.CSTNode]) -> tuple[list[cst.CSTNode], list[cst.EmptyLine]]:
        new: list[cst.CSTNode] = []
        carried: list[cst.EmptyLine] = []
        wrap: Wrap | None = None
        start = 0
        for statement in old:
            before, made, after = self.statement(statement)
            if made and not isinstance(made[0], (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
                raise ValueError(f"a {type(made[0]).__name__} is no statement of a block")
            if not made:
                carried = joined_lines(carried, carried_lines(statement))
            if not (before or made or after):
                continue
            if before and made:
                before[0] = before[0].with_changes(leading_lines=_leading(made[0]))
                made = (made[0].with_changes(leading_lines=[]), *made[1:])
            place = len(new)
            new.extend(before)
            if statement in self.wraps:
                ahead = self.ahead_of(statement)
                new.extend(made[:ahead])
                made = made[ahead:]
                wrap, start = self.wraps[statement], len(new)
            new.extend(made)
            if wrap is not None and statement is wrap.last:
                new[start:] = [_under(wrap.header, new[start:])]
                wrap = None
            new.extend(after)
            if carried:
                new[place] = new[place].with_changes(leading_lines=joined_lines(carried, _leading(new[place])))
            carried = self.trailing_of(statement)
        if wrap is not None:
            raise ValueError("a wrap that ends in another block")
        return new, carried

    def ahead_of(self, statement: cst.CSTNode) -> int:
        """Return how many of the lines that ``statement`` becomes were put before it: they stay outside of a wrap."""
        if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
            return 0
        insert = self.inserts.get(statement.body[0])
        return 0 if insert is None else len(insert.before)

    def statement(self, statement: cst.CSTNode) -> tuple[list[cst.CSTNode], Nodes, list[cst.CSTNode]]:
        insert = self.inserts.get(statement)
        made = self.node(statement)
        if insert is None:
            return [], made, []
        lines = [[_as_line(each) for each in part] for part in (insert.before, insert.after)]
        return [*lines[0]], made, [*lines[1]]

    def trailing_of(self, statement: cst.CSTNode) -> list[cst.EmptyLine]:
        """The comments that stood at the end of a removed block."""
        edit = self.replacements.get(statement)
        if isinstance(edit, Unwrap) and isinstance(edit.body, cst.IndentedBlock):
            return [line for line in edit.body.footer if line.comment]
        return []

    def unwrapped(self, edit: Unwrap) -> Nodes:
        lines = list(_leading(edit.node))
        if isinstance(edit.body, cst.IndentedBlock):
            lines += comment_line(edit.body.header)
            body, _ = self.statements(edit.body.body)
        else:
            assert isinstance(edit.body, cst.SimpleStatementSuite)
            small = _joined(edit.body.body, [self.small(item) for item in edit.body.body])
            body = [cst.SimpleStatementLine(small, trailing_whitespace=edit.body.trailing_whitespace)] if small else []
        if not body:
            return ()
        body[0] = body[0].with_changes(leading_lines=joined_lines(lines, _leading(body[0])))
        return tuple(body)

    def small(self, statement: cst.CSTNode) -> Nodes:
        insert = self.inserts.get(statement)
        made = self.node(statement)
        return made if insert is None else (*insert.before, *made, *insert.after)

    def line(self, line: cst.SimpleStatementLine) -> Nodes:
        """Give each statement a line of its own if the old one had its line for itself; join them with ``;`` if not."""
        if len(line.body) > 1 or line.body[0].semicolon != cst.MaybeSentinel.DEFAULT:
            body = _joined(line.body, [self.small(item) for item in line.body])
            return (line.with_changes(body=body),) if body else ()
        statements = self.small(line.body[0])
        trailing = line.trailing_whitespace
        place = statements.index(line.body[0]) if line.body[0] in statements else 0
        lines: list[cst.CSTNode] = []
        for number, statement in enumerate(statements):
            if isinstance(statement, cst.BaseCompoundStatement):
                lines.append(statement if number else statement.with_changes(leading_lines=line.leading_lines))
                continue
            mine = trailing if number == place or is_pragma(trailing.comment) else without_comment(trailing)
            leading = line.leading_lines if number == 0 else []
            lines.append(line.with_changes(body=[statement], trailing_whitespace=mine, leading_lines=leading))
        return tuple(lines)


def _merged(inserts: Iterable[Insert]) -> dict[cst.CSTNode, Insert]:
    """One insert per anchor, in the order of reporting."""
    found: dict[cst.CSTNode, Insert] = {}
    for each in inserts:
        old = found.get(each.anchor, Insert(each.anchor))
        found[each.anchor] = Insert(each.anchor, old.before + each.before, old.after + each.after)
    return found


def _as_line(statement: cst.CSTNode) -> cst.CSTNode:
    return cst.SimpleStatementLine([statement]) if isinstance(statement, cst.BaseSmallStatement) else statement


def _anchors(edit: AnyEdit) -> tuple[cst.CSTNode, ...]:
    if isinstance(edit, Wrap):
        return (edit.first, edit.last)
    return (edit.anchor,) if isinstance(edit, Insert) else (edit.node,)


def _ancestors(module: cst.Module, edits: Sequence[AnyEdit]) -> set[cst.CSTNode]:
    parent_of = parents(module)
    found: set[cst.CSTNode] = set()
    for edit in edits:
        for anchor in _anchors(edit):
            node = parent_of[anchor]
            while node not in found:
                found.add(node)
                if node is module:
                    break
                node = parent_of[node]
    return found


def _under(header: cst.With | cst.If, body: Sequence[cst.CSTNode]) -> cst.CSTNode:
    lines = _leading(body[0])
    inside = [body[0].with_changes(leading_lines=[]), *body[1:]]
    return header.with_changes(
        body=cst.IndentedBlock([each for each in inside if isinstance(each, cst.BaseStatement)]), leading_lines=lines
    )


def _leading(statement: cst.CSTNode) -> Sequence[cst.EmptyLine]:
    lines: Sequence[cst.EmptyLine] = getattr(statement, "leading_lines", ())
    return lines


def _joined(old: Sequence[cst.BaseSmallStatement], new: Sequence[Nodes]) -> list[cst.BaseSmallStatement]:
    """Return the statements of one line; an old semicolon stays behind the last of what replaced its statement."""
    body: list[cst.BaseSmallStatement] = []
    for before, statements in zip(old, new):
        for place, statement in enumerate(statements):
            if not isinstance(statement, cst.BaseSmallStatement):
                raise ValueError(f"a {type(statement).__name__} can't share a line")
            is_last = place == len(statements) - 1
            body.append(statement.with_changes(semicolon=before.semicolon if is_last else cst.MaybeSentinel.DEFAULT))
    if body and len(new[-1]) == 0:
        body[-1] = body[-1].with_changes(semicolon=old[-1].semicolon)
    return body
