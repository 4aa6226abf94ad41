"""``step(grads=..., output_params=...)``: gradients and places for the rounded result, handed over by FP16_Optimizer.

Source: apex/contrib/optimizers/fused_adam.py and fused_sgd.py.
"""

from __future__ import annotations

import types
from typing import Any

from torch import Tensor

from ... import _native


def by_group(given: Any, groups: int) -> list[Any]:
    """One entry per group: of a list of lists its lists; a list or generator of tensors is one group's.

    None gives None for each of the ``groups``.
    """
    if given is None:
        return [None] * groups
    if isinstance(given, types.GeneratorType):
        return [list(given)]
    given = list(given)
    return [given] if not given or not isinstance(given[0], list) else given


def entries(given: Any, params: list[Any]) -> list[Any]:
    """One entry per parameter; Nones if nothing was given."""
    return [None] * len(params) if given is None else list(given)


def write_outputs(outputs: list[Any], params: list[Tensor]) -> None:
    """Round parameters into the tensors given for them; None where none was."""
    pairs = [(output, param) for output, param in zip(outputs, params) if output is not None]
    if pairs:
        _native.copy_into([output for output, _ in pairs], [param for _, param in pairs])
