"""The GradScaler behind each loss scaler: torch's own, plus what Apex could do and it can't.

That is: float16 gradients (O3), a scale that is set from outside, a floor and a ceiling, and reading the overflow
flags without a step.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from .. import _native
from ._standin_scaler import StandInGradScaler


class _ApexAbilities:
    """Mixed into the GradScaler class at hand."""

    _scale: Any
    _growth_tracker: Any
    _init_scale: Any
    _init_growth_tracker: Any
    _per_optimizer_states: dict[int, dict[str, Any]]

    def _unscale_grads_(self, optimizer: Any, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool) -> Any:
        # Apex unscales float16 gradients in place; torch's scaler refuses them unless told otherwise.
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)  # type: ignore[misc]

    def found_infs(self) -> list[Tensor]:
        """A flag (0.0 or 1.0, 0-dim float32) per optimizer and device unscaled since the last update."""
        flags = [f for state in self._per_optimizer_states.values() for f in state["found_inf_per_device"].values()]
        shape = self._scale.shape if self._scale is not None else ()
        return [flag if flag.shape == shape else flag.reshape(shape) for flag in flags]  # FSDP's have one element

    def forget_overflows(self) -> None:
        """Drop the flags, so that the same optimizer can be unscaled again."""
        self._per_optimizer_states.clear()

    def put(self, scale: float, growth_tracker: int) -> None:
        """Set scale and growth tracker, on the device too if they are there already."""
        if self._scale is None:
            self._init_scale, self._init_growth_tracker = scale, growth_tracker
        else:
            self._scale.fill_(scale)
            self._growth_tracker.fill_(growth_tracker)

    def snapshot(self) -> tuple[Tensor, Tensor]:
        """Copies of scale and growth tracker."""
        return self._scale.clone(), self._growth_tracker.clone()

    def restore_where(self, flag: Tensor, before: tuple[Tensor, Tensor]) -> None:
        """Put a snapshot back if ``flag`` (0-dim) is set, without reading it."""
        for tensor, earlier in zip((self._scale, self._growth_tracker), before):
            tensor.copy_(torch.where(flag.to(tensor.device) > 0, earlier, tensor))

    def raise_to(self, floor: float, flag: Tensor) -> None:
        """Raise the scale to ``floor`` if ``flag`` (0-dim, 0 or 1) is set, without reading it."""
        torch.max(self._scale, flag.to(self._scale.device) * floor, out=self._scale)

    def lower_to(self, ceiling: float, flag: Tensor) -> None:
        """Lower the scale to ``ceiling`` if it has just grown: no overflow, and the counter back at 0."""
        grown = (self._growth_tracker == 0) & (flag.to(self._scale.device) == 0)
        self._scale.copy_(torch.where(grown, self._scale.clamp(max=ceiling), self._scale))


@functools.lru_cache(maxsize=None)
def _class_for(base: type) -> Any:
    return type("ApexGradScaler", (_ApexAbilities, base), {"__doc__": _ApexAbilities.__doc__})


def make_grad_scaler(
    device: torch.device, scale: float, growth_tracker: int, growth_interval: int, sharded: bool = False
) -> Any:
    """Return the scaler for losses on ``device``; its tensors are made there when the first loss is scaled.

    Args:
        device: where the losses are.
        scale: the scale to start with.
        growth_tracker: backwards without an overflow so far.
        growth_interval: backwards without an overflow after which the scale grows.
        sharded: whether the model's parameters are sharded over the processes (FSDP).
    """
    base = _native.grad_scaler_class(device.type, sharded)
    options: dict[str, Any] = {"init_scale": scale, "growth_interval": growth_interval}
    if base is None:
        scaler = _class_for(StandInGradScaler)(**options)
    elif _native.takes_device(base):
        scaler = _class_for(base)(device=device.type, **options)
    else:
        scaler = _class_for(base)(**options)
    scaler._init_growth_tracker = growth_tracker
    return scaler
