"""What the converter raises. Every message says what was found, where, and what to do next."""

from __future__ import annotations


class CannotConvert(ValueError):
    """The state is none that the converter knows how to carry, or an option it needs is missing."""


class Damaged(CannotConvert):
    """The file is no checkpoint, or a broken one: truncated, corrupt, or made to hurt whoever opens it."""


class Unsafe(CannotConvert):
    """The file asks for something to be executed: a class or function that isn't in the reviewed table."""
