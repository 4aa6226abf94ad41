"""What a rule hands to the engine. A rule reports edits and sites; it never changes a tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

import libcst as cst


@dataclass(frozen=True)
class Edit:
    """Put ``replacement`` where ``node`` stands.

    Only a small statement (an import, an assignment, …) can become several nodes, or none; anything else becomes
    exactly one. The engine lays several statements out: a line each, or joined with ``;`` where they share a line.
    """

    node: cst.CSTNode
    replacement: tuple[cst.CSTNode, ...]


@dataclass(frozen=True)
class Site:
    """A place that the rule leaves for a person: what and why, and what to do. ``because`` is the line that decided."""

    node: cst.CSTNode
    message: str
    advice: str
    because: cst.CSTNode | None = None


Reported = Union[Edit, Site]
