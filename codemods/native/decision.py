"""What is known of a file, what is decided about one of its training loops, and what a person must review."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Sequence

import libcst as cst

from ..target import BFLOAT16, Target
from .conditions import Atom, Conditions
from .events import Events
from .guards import Guard
from .index import Index
from .kinds import Kinds
from .levels import LossScale, OptLevel
from .loop import Loop
from .objects import Entity
from .paths import Findings
from .placement import Placement
from .regions import Region, Regions
from .slices import Slices
from .solve import Solved


@dataclass(frozen=True)
class Review:
    """A reason why a native program would be different: what changes, and where."""

    why: str
    node: cst.CSTNode


@dataclass
class Decision:
    """A native program for one loop, as facts for the emitter."""

    loop: Loop
    guard: Guard
    level: OptLevel
    scale: LossScale
    scaler_of: dict[object, int]
    flow: Findings
    regions: list[Region]
    placement: Placement
    facts: tuple[Atom, ...]
    reviews: list[Review] = field(default_factory=list)
    is_conditional: bool = False
    #: whether no loss is scaled, so that the native program has no scaler
    infers: bool = False
    #: losses that are computed where they are passed on: (statement, argument)
    hoisted: Sequence[tuple[cst.BaseSmallStatement, cst.BaseExpression]] = ()

    @property
    def is_plain(self) -> bool:
        """Whether nothing of amp is on: opt level O0."""
        return self.level.name == "O0" and self.level.expression is None


@dataclass(frozen=True)
class Facts:
    """What is known of a file, shared by its loops."""

    index: Index
    solved: Solved
    events: Events
    kinds: Kinds
    slices: Slices
    regions: Regions
    conditions: Conditions
    target: Target
    optimizers: tuple[Entity, ...]
    #: optimizers that were never given to amp
    others: tuple[Entity, ...]
    entry_points: tuple[cst.FunctionDef, ...]


class NeedsReview(Exception):
    """The loop can be native, but would train differently; ``--level review`` is needed."""

    def __init__(self, reviews: Sequence[Review]) -> None:
        super().__init__("; ".join(each.why for each in reviews))
        self.reviews = tuple(reviews)


def is_bfloat16(target: Target) -> bool:
    """Return whether the native program has no scaler."""
    return target.dtype == BFLOAT16
