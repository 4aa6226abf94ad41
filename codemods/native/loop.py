"""A training loop: all sites joined by their optimizers, and what is decided about it."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from .loss_scales import ScaleRead, ScaleWrite
from .objects import Entity
from .sites import Initialize, OtherCall, ScaleLoss, Sites


@dataclass
class Loop:
    """The sites of one training loop."""

    optimizers: list[Entity] = field(default_factory=list)
    initialize: list[Initialize] = field(default_factory=list)
    blocks: list[ScaleLoss] = field(default_factory=list)
    calls: list[OtherCall] = field(default_factory=list)
    scales: list[ScaleRead | ScaleWrite] = field(default_factory=list)

    @property
    def first(self) -> cst.CSTNode:
        """The call that speaks for the loop in reports."""
        if self.initialize:
            return self.initialize[0].call
        if self.blocks or self.calls:
            return (self.blocks or self.calls)[0].call
        return self.scales[0].node


def loops_of(sites: Sites) -> list[Loop]:
    """Return the training loops of a file. Sites that share an optimizer are in one loop.

    What speaks of amp as a whole (``state_dict``, loss scales) belongs to every loop; with several, to the first.
    """
    loops: list[Loop] = []
    for init in sites.initialize:
        _joined(loops, list(init.entities)).initialize.append(init)
    for block in sites.scale_loss:
        _joined(loops, list(block.entities)).blocks.append(block)
    for call in sites.calls:
        if call.entity is not None:
            _joined(loops, [call.entity]).calls.append(call)
    for call in sites.calls:
        if call.entity is None:
            if not loops:
                loops.append(Loop())
            loops[0].calls.append(call)
    if sites.scales:
        loops = loops or [Loop()]
        loops[0].scales += sites.scales
    return loops


def _joined(loops: list[Loop], optimizers: list[Entity]) -> Loop:
    values = {each.value for each in optimizers}
    mine = [loop for loop in loops if values & {each.value for each in loop.optimizers}]
    loop = mine[0] if mine else Loop()
    if not mine:
        loops.append(loop)
    for other in mine[1:]:
        loops.remove(other)
        loop.optimizers += other.optimizers
        loop.initialize += other.initialize
        loop.blocks += other.blocks
        loop.calls += other.calls
    known = {each.value for each in loop.optimizers}
    for each in optimizers:
        if each.value not in known:
            known.add(each.value)
            loop.optimizers.append(each)
    return loop
