"""A file that was opened: its tree, and what is known about who wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

from ..notes import Report


@dataclass(frozen=True)
class Contents:
    """What one of the file formats holds: a tree as it was read."""

    tree: Any
    #: "zip", "legacy" or "pickle"
    format_name: str
    #: what the file says about its writer: ``{"version": "3", "pickle protocol": 2}``
    writer: Mapping[str, Any]
    byteorder: str = "little"
    #: whether the tree may hold something that isn't plain data or a record yet
    has_strangers: bool = True
    #: classes and functions that the pickle named, and the table of what it builds doesn't know
    strangers: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Opened:
    """A checkpoint, open: nothing of its tensors is read yet, and the file has to stay until it is written elsewhere.

    ``root`` is the tree. ``report`` has a note for each value that became plain data. ``foreign`` are the classes and
    functions that aren't in the reviewed table, each with the places where it stands.
    """

    path: Path
    root: Any
    report: Report
    format_name: str
    byteorder: str
    writer: Mapping[str, Any]
    foreign: Mapping[str, tuple[str, ...]]
    #: those of them that the pickle has called or named, and thrown away: they aren't in the tree
    discarded: tuple[str, ...] = ()
