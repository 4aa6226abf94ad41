"""What a rule hands to the engine. A rule reports edits and sites; it never changes a tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

import libcst as cst

from .findings import Kind


@dataclass(frozen=True)
class Edit:
    """Put ``replacement`` where ``node`` stands.

    Only a small statement (an import, an assignment, …) can become several nodes, or none, and a compound statement
    several statements; anything else becomes exactly one. The engine lays several statements out: a line each, or
    joined with ``;`` where they share a line. No other edit may stand inside ``node``.
    """

    node: cst.CSTNode
    replacement: tuple[cst.CSTNode, ...]


@dataclass(frozen=True)
class Insert:
    """Put statements before and after the statement ``anchor``. Edits of and in ``anchor`` are made as well.

    A compound statement can't be put where several statements share a line.
    """

    anchor: cst.CSTNode
    before: tuple[cst.CSTNode, ...] = ()
    after: tuple[cst.CSTNode, ...] = ()


@dataclass(frozen=True)
class Wrap:
    """Put the statements from ``first`` to ``last`` of one block under ``header``, a ``with`` or ``if`` of any body.

    Both are whole lines or compound statements. Edits inside them are made as well. Wraps may not overlap.
    """

    first: cst.BaseStatement
    last: cst.BaseStatement
    header: cst.With | cst.If


@dataclass(frozen=True)
class Unwrap:
    """Put the statements of ``body``, one of the blocks of the compound statement ``node``, where ``node`` stands.

    Comments of the removed lines go to the statements that stay. Edits inside ``body`` are made as well.
    """

    node: cst.BaseCompoundStatement
    body: cst.BaseSuite


@dataclass(frozen=True)
class Append:
    """Add a keyword argument to a call, a keyword-only parameter to parameters, an element to a tuple, or a decorator.

    It comes last. Edits of and in ``node`` are made as well.
    """

    node: cst.Call | cst.Parameters | cst.Tuple | cst.FunctionDef
    item: cst.Arg | cst.Param | cst.Element | cst.Decorator


@dataclass(frozen=True)
class Site:
    """A place that the rule tells of: what and why, and what to do. ``because`` is the line that decided."""

    node: cst.CSTNode
    message: str
    advice: str
    because: cst.CSTNode | None = None
    kind: Kind = Kind.PERSON


AnyEdit = Union[Edit, Insert, Wrap, Unwrap, Append]
Reported = Union[AnyEdit, Site]
