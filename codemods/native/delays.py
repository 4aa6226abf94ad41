"""``delay_unscale``: gradients that Apex leaves scaled. Natively they always are, so nothing may look at them then."""

from __future__ import annotations

from typing import Iterable

import libcst as cst

from .conditions import Atom, Conditions
from .index import Index
from .problem import CannotFollow
from .sites import ScaleLoss


def check_delay(block: ScaleLoss, places: Iterable[cst.CSTNode], index: Index, conditions: Conditions) -> None:
    """Raise CannotFollow unless every one of ``places`` (steps, reads of gradients) is reached undelayed alone.

    That is shown where a place stands under the condition that switches the delay off: ``delay_unscale=not last`` and
    ``if last: step()``.
    """
    if block.delay is None:
        return
    needed = set(conditions.conjuncts(block.delay, False))
    for place in places:
        if index.function(place) is not block.function or not needed <= _known_at(place, index, conditions):
            why = "`delay_unscale` may leave gradients scaled where they are used"
            raise CannotFollow(why, place, 13)


def _known_at(place: cst.CSTNode, index: Index, conditions: Conditions) -> set[Atom]:
    known: set[Atom] = set()
    inner = place
    for outer in index.ancestors(place):
        if isinstance(outer, cst.FunctionDef):
            break
        if isinstance(outer, cst.If) and inner is not outer.test:
            known.update(conditions.conjuncts(outer.test, inner is outer.body))
        inner = outer
    return known
