"""Which kinds of events a piece of code can bring about, through the functions of the file that it calls."""

from __future__ import annotations

import libcst as cst

from ..tree import children
from .events import Events
from .states import Event


class Kinds:
    """Kinds per function and per node, found on demand."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self._functions: dict[cst.FunctionDef, frozenset[Event]] = {}
        self._nodes: dict[cst.CSTNode, frozenset[Event]] = {}
        self._solve()

    def of(self, node: cst.CSTNode) -> frozenset[Event]:
        """Return what running ``node`` can bring about. Defining a function or class brings nothing about."""
        if node not in self._nodes:
            self._nodes[node] = self._collect(node)
        return self._nodes[node]

    def of_function(self, function: cst.FunctionDef) -> frozenset[Event]:
        """Return what calling ``function`` can bring about."""
        return self._functions.get(function, frozenset())

    def _solve(self) -> None:
        functions = [n for n in self.events.index.nodes if isinstance(n, cst.FunctionDef)]
        changed = True
        while changed:
            changed = False
            for function in functions:
                found = self._collect(function.body)
                if found != self._functions.get(function, frozenset()):
                    self._functions[function] = found
                    changed = True

    def _collect(self, node: cst.CSTNode) -> frozenset[Event]:
        found: set[Event] = set()
        waiting = [node]
        while waiting:
            each = waiting.pop()
            found.update(h.event for h in self.events.at.get(each, ()))
            if isinstance(each, cst.Call):
                for function, _ in self.events.solved.functions_of(each):
                    found |= self._functions.get(function, frozenset())
            if isinstance(each, (cst.FunctionDef, cst.Lambda)) and each is not node:
                continue
            waiting.extend(children(each))
        return frozenset(found)
