"""What a layout is: who wrote it, when, where that is known from, and the function that converts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

from ..notes import Kind, Report
from ..options import Options
from .editing import Edits, Spot, Tree


@dataclass(frozen=True)
class Work:
    """What every layout gets beside the tree."""

    options: Options
    report: Report

    def changed(self, place: str, text: str) -> None:
        self.report.add(Kind.CHANGED, place, text)

    def lost(self, place: str, text: str) -> None:
        self.report.add(Kind.LOST, place, text)

    def assumed(self, place: str, text: str) -> None:
        self.report.add(Kind.ASSUMED, place, text)

    def kept(self, place: str, text: str) -> None:
        self.report.add(Kind.KEPT, place, text)


@dataclass(frozen=True)
class Layout:
    """One layout.

    ``convert`` finds it in a tree and returns what takes the place of which container. It changes nothing itself.
    """

    name: str
    writer: str
    years: str
    source: str
    convert: Callable[[Tree, Work], Edits]


def each_dict(convert: Callable[[Spot, Work], Any]) -> Callable[[Tree, Work], Edits]:
    """Make a layout's function of one that looks at one dict, and returns what replaces it, or None."""

    def over_the_tree(tree: Tree, work: Work) -> Edits:
        edits: Edits = {}
        for spot in tree.spots:
            if isinstance(spot.node, dict):
                new = convert(spot, work)
                if new is not None:
                    edits[id(spot.node)] = new
        return edits

    return over_the_tree
