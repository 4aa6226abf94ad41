"""Steps that never wait for the host: learning rate, step count and overflow flag are tensors on the device.

Source: the ``capturable`` part of apex/optimizers/fused_adam.py, and fused_mixed_precision_lamb.py.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor

from ._tensor_lists import Factor, scale_


class Overflow(NamedTuple):
    """What is known of a step's gradients on one device, without reading it back: 0-dim float32 tensors."""

    #: 1 over what the gradients are still scaled by
    inverse_scale: Factor
    #: 0 after an overflow, to leave everything as it was; 1 to step; None if nobody looks for overflows
    keep: Tensor | None


class Answer:
    """What the GradScaler that left unscaling and skipping to ``step`` knows; without one, no overflow is possible."""

    def __init__(self, flags: list[Tensor], scale: Tensor | None) -> None:
        self._flags = flags
        self._scale = scale

    def on(self, device: torch.device) -> Overflow:
        """The answer as tensors on ``device``. An overflow on any device counts on all."""
        if not self._flags:
            return Overflow(1.0, None)
        found = functools.reduce(torch.max, [flag.reshape(()).to(device) for flag in self._flags])
        inverse = 1.0 if self._scale is None else 1.0 / self._scale.reshape(()).to(device)
        return Overflow(inverse, 1.0 - found)


def ask(grad_scaler: Any, optimizer: Any) -> Answer:
    """Ask the GradScaler that called ``step(grad_scaler=...)``, if one did."""
    if grad_scaler is None:
        return Answer([], None)
    flags = list(grad_scaler._check_inf_per_device(optimizer).values())
    stage = grad_scaler._per_optimizer_states[id(optimizer)]["stage"]
    # after unscale_ the gradients are true; Apex divided again
    unscaled = getattr(stage, "name", stage) == "UNSCALED"
    return Answer(flags, None if unscaled else grad_scaler._get_scale_async())


def usable_gradients(grads: list[Tensor], overflow: Overflow) -> list[Tensor]:
    """Unscale in place, as Apex did; return finite ones: zeros after an overflow."""
    if overflow.keep is None:
        return grads
    scale_(grads, overflow.inverse_scale)
    return finite(grads, overflow.keep)


def finite(grads: list[Tensor], keep: Tensor) -> list[Tensor]:
    """The gradients, or zeros after an overflow, in new tensors."""
    bad = keep == 0
    return [grad.masked_fill(bad, 0.0) for grad in grads]


def count_step(group: dict[str, Any], answer: Answer, device: torch.device) -> None:
    """Add one to the group's step tensor (int32, one element), unless there was an overflow."""
    if "step" not in group:
        group["step"] = torch.zeros(1, dtype=torch.int32, device=device)
    keep = answer.on(device).keep
    group["step"] += 1 if keep is None else keep.to(torch.int32)


def tensor_on(device: torch.device, value: Any, dtype: torch.dtype, shape: tuple[int, ...] = ()) -> Tensor:
    """``value`` as a tensor of its own on ``device``."""
    return torch.as_tensor(value, dtype=dtype).detach().clone().reshape(shape).to(device)


def full_precision_copies(
    optimizer: torch.optim.Optimizer, copies: list[dict[str, Any]], wanted: Callable[[Tensor], bool]
) -> None:
    """Extend ``copies`` to all groups: ``{'params': [float32 copy of a wanted parameter, or None, ...]}``.

    Made at the first step, so that weights loaded or broadcast after the optimizer was built count.
    """
    for group in optimizer.param_groups[len(copies) :]:
        copies.append({"params": [p.detach().clone().float() if wanted(p) else None for p in group["params"]]})


def copies_of(group: dict[str, Any], copies: dict[str, Any]) -> dict[Tensor, Tensor]:
    """The float32 copies of one group's parameters, by parameter."""
    pairs = zip(group["params"], copies["params"])
    return {param: copy for param, copy in pairs if copy is not None}
