"""What the gradients of one optimizer can be, and how each event changes that. The table is the heart of the proof.

A state is one word per optimizer, seen from the *native* program that the rewrite would make, with what Apex did in
the same place kept in mind where the two differ.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Mapping


class Gradients(enum.Enum):
    """The gradients of an optimizer's parameters."""

    EMPTY = "none since they were cleared"
    ZERO = "zeros"
    PLAIN = "unscaled, from plain backward passes alone"
    SCALED = "scaled"
    UNSCALED = "unscaled for this step"
    STALE = "left over from the last step"
    FOREIGN = "mixed with scaled gradients of a loss that isn't this optimizer's"
    PENDING = "cleared after they were unscaled, with no update since"
    STEPPED = "stepped, with no update since"
    UNKNOWN = "unknown, after an exception"
    OPEN = "unknown after an exception, with no update since"


class Event(enum.Enum):
    """What can happen to the gradients of an optimizer."""

    SCALED_BACKWARD = "scaled backward"
    FOREIGN_BACKWARD = "scaled backward of another loss"
    PLAIN_BACKWARD = "plain backward"
    STEP = "step"
    UPDATE = "update"
    TOUCH = "gradients are read or changed"
    CLEAR = "zero_grad"
    ZERO = "zero_grad that keeps zeros"
    NEW = "a new optimizer"
    SKIP = "the program leaves a step out, and the scale is updated all the same"
    SCALE_READ = "the loss scale is read"
    CAUGHT = "an exception was caught and the scaler reset"
    CAUGHT_OPEN = "an exception was caught"


@dataclass(frozen=True)
class Wrong:
    """Why a native program would be wrong here: a rule of soundness, and what happens, as a clause."""

    rule: int
    why: str


G, E = Gradients, Event
_STALE = Wrong(11, "scaled gradients would be added to those of the last step, which are unscaled")
_FOREIGN = Wrong(12, "another loss has left scaled gradients in this optimizer's parameters")
_EMPTY_STEP = Wrong(5, "on some path no gradient has been computed, and GradScaler refuses such a step")
_AFTER_UNSCALE = Wrong(13, "its gradients are read or changed between two backward passes of one step")
_NOTHING_TO_UPDATE = Wrong(7, "a step may be left out here, or not have been prepared")
_NO_UPDATE = Wrong(3, "a path leads here from unscaled gradients without a step")
_PLAIN_STEP = Wrong(10, "on some path its gradients come from plain backward passes alone")
_CAUGHT = Wrong(3, "after an exception that is caught, gradients are left over")
_TWICE = Wrong(11, "it steps twice with the same gradients")
_BETWEEN = Wrong(2, "an optimizer with the same loss scale updates it between this one's backward and step")

#: (event, gradients before) → gradients after, or what would be wrong. What isn't listed stays as it is.
TRANSITIONS: Mapping[tuple[Event, Gradients], Gradients | Wrong] = {
    (E.SCALED_BACKWARD, G.EMPTY): G.SCALED,
    (E.SCALED_BACKWARD, G.ZERO): G.SCALED,
    (E.SCALED_BACKWARD, G.PLAIN): G.SCALED,
    (E.SCALED_BACKWARD, G.UNSCALED): _AFTER_UNSCALE,
    (E.SCALED_BACKWARD, G.STALE): _STALE,
    (E.SCALED_BACKWARD, G.FOREIGN): _FOREIGN,
    (E.SCALED_BACKWARD, G.PENDING): _NO_UPDATE,
    (E.SCALED_BACKWARD, G.STEPPED): _STALE,
    (E.SCALED_BACKWARD, G.UNKNOWN): _CAUGHT,
    (E.FOREIGN_BACKWARD, G.EMPTY): G.FOREIGN,
    (E.FOREIGN_BACKWARD, G.ZERO): G.FOREIGN,
    (E.FOREIGN_BACKWARD, G.PLAIN): G.FOREIGN,
    (E.FOREIGN_BACKWARD, G.SCALED): _FOREIGN,
    (E.FOREIGN_BACKWARD, G.UNSCALED): _FOREIGN,
    (E.FOREIGN_BACKWARD, G.STALE): G.FOREIGN,
    (E.FOREIGN_BACKWARD, G.PENDING): _NO_UPDATE,
    (E.FOREIGN_BACKWARD, G.STEPPED): G.FOREIGN,
    (E.PLAIN_BACKWARD, G.EMPTY): G.PLAIN,
    (E.PLAIN_BACKWARD, G.ZERO): G.PLAIN,
    (E.PLAIN_BACKWARD, G.UNSCALED): _AFTER_UNSCALE,
    (E.PLAIN_BACKWARD, G.STALE): _STALE,
    (E.PLAIN_BACKWARD, G.PENDING): _NO_UPDATE,
    (E.PLAIN_BACKWARD, G.STEPPED): _STALE,
    (E.PLAIN_BACKWARD, G.UNKNOWN): _CAUGHT,
    (E.STEP, G.EMPTY): _EMPTY_STEP,
    (E.STEP, G.ZERO): G.STEPPED,
    (E.STEP, G.PLAIN): _PLAIN_STEP,
    (E.STEP, G.SCALED): G.STEPPED,
    (E.STEP, G.UNSCALED): G.STEPPED,
    (E.STEP, G.STALE): _TWICE,
    (E.STEP, G.FOREIGN): _FOREIGN,
    (E.STEP, G.PENDING): _EMPTY_STEP,
    (E.STEP, G.STEPPED): _TWICE,
    (E.STEP, G.UNKNOWN): _CAUGHT,
    (E.UPDATE, G.SCALED): _BETWEEN,
    (E.UPDATE, G.UNSCALED): _BETWEEN,
    (E.UPDATE, G.PENDING): G.EMPTY,
    (E.UPDATE, G.STEPPED): G.STALE,
    (E.SKIP, G.UNSCALED): G.STALE,
    (E.SKIP, G.PENDING): G.EMPTY,
    **{(E.SKIP, each): _NOTHING_TO_UPDATE for each in G if each not in (G.UNSCALED, G.PENDING)},
    (E.TOUCH, G.SCALED): G.UNSCALED,
    (E.TOUCH, G.UNKNOWN): _CAUGHT,
    (E.CLEAR, G.ZERO): G.EMPTY,
    (E.CLEAR, G.PLAIN): G.EMPTY,
    (E.CLEAR, G.SCALED): G.EMPTY,
    (E.CLEAR, G.UNSCALED): G.PENDING,
    (E.CLEAR, G.STALE): G.EMPTY,
    (E.CLEAR, G.FOREIGN): G.EMPTY,
    (E.CLEAR, G.STEPPED): G.PENDING,
    (E.CLEAR, G.UNKNOWN): G.EMPTY,
    (E.ZERO, G.PLAIN): G.ZERO,
    (E.ZERO, G.SCALED): G.ZERO,
    (E.ZERO, G.UNSCALED): G.PENDING,
    (E.ZERO, G.STALE): G.ZERO,
    (E.ZERO, G.FOREIGN): G.EMPTY,
    (E.ZERO, G.STEPPED): G.PENDING,
    (E.ZERO, G.UNKNOWN): G.EMPTY,
    **{(E.NEW, each): G.EMPTY for each in G},
    (E.CAUGHT, G.PLAIN): G.UNKNOWN,
    (E.CAUGHT, G.SCALED): G.UNKNOWN,
    (E.CAUGHT, G.UNSCALED): G.UNKNOWN,
    (E.CAUGHT, G.STEPPED): G.UNKNOWN,
    (E.CAUGHT, G.PENDING): G.EMPTY,
    (E.CAUGHT_OPEN, G.PLAIN): G.UNKNOWN,
    (E.CAUGHT_OPEN, G.SCALED): G.UNKNOWN,
    (E.CAUGHT_OPEN, G.UNSCALED): G.OPEN,
    (E.CAUGHT_OPEN, G.STEPPED): G.OPEN,
    (E.CLEAR, G.OPEN): G.PENDING,
    (E.ZERO, G.OPEN): G.PENDING,
    (E.SCALED_BACKWARD, G.OPEN): _CAUGHT,
    (E.PLAIN_BACKWARD, G.OPEN): _CAUGHT,
    (E.STEP, G.OPEN): _CAUGHT,
    (E.TOUCH, G.OPEN): _CAUGHT,
    (E.UPDATE, G.OPEN): G.UNKNOWN,
}


#: a step has been prepared, or its gradients cleared since: there is something to update
PREPARED = frozenset({Gradients.UNSCALED, Gradients.PENDING})


def after(event: Event, before: Gradients) -> Gradients | Wrong:
    """Return the gradients after ``event``, or what would be wrong about it."""
    return TRANSITIONS.get((event, before), before)
