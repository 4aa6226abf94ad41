"""What a run over all paths starts from, carries along and finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, FrozenSet

import libcst as cst

from .assumptions import Assumed
from .conditions import Atom
from .objects import Entity
from .problem import CannotFollow
from .states import Gradients


@dataclass(frozen=True)
class State:
    """The gradients of every optimizer, and the tests whose outcome is known on this path."""

    gradients: tuple[Gradients, ...]
    assumed: Assumed = frozenset()


States = FrozenSet[State]
NOWHERE: States = frozenset()


@dataclass(frozen=True)
class Out:
    """Where a block leads: to its end, or out of it by break, continue or return."""

    end: States = NOWHERE
    breaks: States = NOWHERE
    continues: States = NOWHERE
    returns: States = NOWHERE


@dataclass(frozen=True)
class Setup:
    """What a run depends on besides the code.

    Args:
        optimizers: in the order of the states.
        scaler_of: the number of each one's loss scaler.
        facts: tests that hold in this world.
        holders: functions (None: the module) that can have a scaler, so that statements can be put there.
        reached: which optimizers a loss can reach.
        reaches_others: whether a loss may reach an optimizer that was never given to amp.
        early: an `if` that only looks at gradients is one event: they are unscaled before it, whether it runs or not.
        eager: gradients are unscaled behind each block, as Apex did it, wherever they are used then.
        skips: where the program leaves a step out, the scale is updated.
        resets: a handler that goes on after an exception resets the scaler.
    """

    optimizers: tuple[Entity, ...]
    scaler_of: tuple[int, ...]
    facts: tuple[Atom, ...]
    holders: frozenset[cst.FunctionDef | None]
    reached: Callable[[cst.BaseExpression], frozenset[Entity]]
    reaches_others: Callable[[cst.BaseExpression], bool]
    resets: bool = False
    skips: bool = False
    early: bool = False
    eager: bool = False


@dataclass
class Findings:
    """What a run found: problems by optimizer, and the statements that the native program needs."""

    problems: list[tuple[int, CannotFollow]] = field(default_factory=list)
    #: (statement, optimizer) → the gradients seen there, where it reads or changes them
    touches: dict[tuple[cst.CSTNode, int], set[Gradients]] = field(default_factory=dict)
    #: every step call that was run → the optimizer
    steps: dict[cst.CSTNode, int] = field(default_factory=dict)
    #: plain backward calls into parameters of our optimizers → the scaler
    plain: dict[cst.CSTNode, int] = field(default_factory=dict)
    #: every plain backward call that was run
    all_plain: set[cst.CSTNode] = field(default_factory=set)
    #: whether gradients of a plain and of a scaled backward are added
    is_mixed: bool = False
    #: where gradients of plain backward passes alone are read: (optimizer, node)
    plain_touches: list[tuple[int, cst.CSTNode]] = field(default_factory=list)
    #: handlers that reset a scaler
    resets: set[tuple[cst.CSTNode, int]] = field(default_factory=set)
    #: backward calls that add to gradients which are scaled already
    accumulates: set[cst.CSTNode] = field(default_factory=set)
    #: expressions that read a loss scale → the gradients of each optimizer there
    scale_reads: dict[cst.CSTNode, set[tuple[int, Gradients]]] = field(default_factory=dict)
    #: blocks of scale_loss behind which gradients are unscaled at once, and the optimizer
    eager: set[tuple[cst.With, int]] = field(default_factory=set)
    #: (statement, whether behind it, optimizer): where the program leaves a step out
    skips: set[tuple[cst.CSTNode, bool, int]] = field(default_factory=set)
    #: the same places → all gradients that were seen there
    leaving: dict[tuple[cst.CSTNode, bool], set[tuple[int, Gradients]]] = field(default_factory=dict)
    #: scale_loss blocks that were run
    blocks: set[cst.CSTNode] = field(default_factory=set)

    @property
    def scaled_plain(self) -> dict[cst.CSTNode, int]:
        """The plain backward calls that must be scaled: those whose gradients meet scaled ones."""
        return self.plain if self.is_mixed else {}


def joined(first: Out, second: Out) -> Out:
    return Out(
        first.end | second.end,
        first.breaks | second.breaks,
        first.continues | second.continues,
        first.returns | second.returns,
    )
