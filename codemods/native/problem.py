"""A fact that is missing: why a training loop can't be native."""

from __future__ import annotations

import libcst as cst


class CannotFollow(Exception):
    """A fact that a native rewrite needs isn't shown by the file. The message is one clause for a person."""

    def __init__(self, message: str, node: cst.CSTNode, rule: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.node = node
        self.rule = rule
