"""Half-precision values that leave a region by ways that no name shows: lists, attributes, hooks, results.

Under Apex casts were on everywhere, so such a value met a matrix product in half again. Natively that stands outside of
autocast, and crashes on its float32 weights (SOUNDNESS 20).
"""

from __future__ import annotations

from typing import Sequence

import libcst as cst

from .half_values import HalfValues, last_name
from .operations import LOWERED
from .problem import CannotFollow
from .regions import Region, Regions
from .slices import Slices
from .values import Imported, Made

_NO_TENSORS = (cst.SimpleString, cst.BaseNumber)


class HalfLeaks:
    """Looks for half values that meet float32 weights outside of regions."""

    def __init__(self, regions: Regions) -> None:
        self.values = HalfValues(regions)
        self.index = regions.index
        self.slices: Slices = regions.slices
        self.solved = regions.slices.solved

    def check(self, found: Sequence[Region], losses: Sequence[cst.CSTNode] = ()) -> None:
        """Raise CannotFollow where a matrix product, or a module, meets a half value outside of regions."""
        if not found and not losses:
            return
        self.values.find(found, losses)
        for node in self.index.nodes:
            if not self._lowers(node) or self.values.runs_under_autocast(node):
                continue
            if self._meets_weights(node):
                raise CannotFollow("a half-precision value is multiplied outside of autocast here", node, 20)

    def _meets_weights(self, node: cst.CSTNode) -> bool:
        """Return whether a half operand meets another that isn't: two half ones multiply anywhere."""
        operands = [self.values.is_half(each) for each in self._operands(node) if not isinstance(each, _NO_TENSORS)]
        is_module = isinstance(node, cst.Call) and last_name(node.func) not in LOWERED
        return any(operands) and (is_module or len(operands) < 2 or not all(operands))

    def _lowers(self, node: cst.CSTNode) -> bool:
        """Return whether ``node`` multiplies matrices, or calls a module, which has float32 weights."""
        if isinstance(node, cst.BinaryOperation):
            return isinstance(node.operator, cst.MatrixMultiply)
        if not isinstance(node, cst.Call):
            return False
        paths = [value.path for value in self.solved.of(node.func) if isinstance(value, Imported)]
        if any(path.startswith(("numpy", "np.")) for path in paths):
            return False
        if last_name(node.func) in LOWERED:
            return True
        values = self.slices.objects.values(node.func)
        return bool(values & self.slices.models) or any(self._is_layer(value) for value in values)

    def _is_layer(self, value: object) -> bool:
        if not isinstance(value, Made):
            return False
        paths = [each.path for each in self.solved.of(value.call.func) if isinstance(each, Imported)]
        return any(path.startswith("torch.nn.") and not path.endswith("Loss") for path in paths)

    def _operands(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        if isinstance(node, cst.BinaryOperation):
            return [node.left, node.right]
        assert isinstance(node, cst.Call)
        parts: list[cst.CSTNode] = [arg.value for arg in node.args]
        if isinstance(node.func, cst.Attribute) and not self.slices.is_object(node.func.value):
            parts.append(node.func.value)
        return parts
