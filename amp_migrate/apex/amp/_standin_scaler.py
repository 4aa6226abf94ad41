"""A GradScaler in plain torch operations, for devices on which torch's own can't run (a CPU before torch 2.3).

Same interface and state dict as ``torch.amp.GradScaler`` (source: torch/amp/grad_scaler.py), checked against it in
the tests.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor


class StandInGradScaler:
    """Dynamic loss scaling. Scale and growth tracker are 0-dim float32 and int32 tensors, made on first use."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self._enabled = enabled
        self._init_scale = init_scale
        self._init_growth_tracker = 0
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._scale: Tensor | None = None
        self._growth_tracker: Tensor | None = None
        self._per_optimizer_states: dict[int, dict[str, Any]] = defaultdict(_fresh_state)

    def scale(self, outputs: Tensor) -> Tensor:
        """Return ``outputs`` times the scale."""
        if not self._enabled:
            return outputs
        return outputs * self._scale_on(outputs.device)

    def _scale_on(self, device: torch.device) -> Tensor:
        if self._scale is None:
            self._scale = torch.full((), self._init_scale, dtype=torch.float32, device=device)
            self._growth_tracker = torch.full((), self._init_growth_tracker, dtype=torch.int32, device=device)
        return self._scale

    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients of ``optimizer`` by the scale and note whether one isn't finite.

        Raises:
            RuntimeError: if it was called before for this optimizer since the last ``update()``.
        """
        if not self._enabled:
            return
        state = self._per_optimizer_states[id(optimizer)]
        if state["unscaled"]:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        if self._scale is None:
            raise AssertionError("Attempted unscale_ but _scale is None. Call scale(outputs) first.")
        inverse = self._scale.double().reciprocal().float()
        found_inf = torch.zeros((), device=self._scale.device)
        state["found_inf_per_device"] = self._unscale_grads_(optimizer, inverse, found_inf, False)
        state["unscaled"] = True

    def _unscale_grads_(
        self, optimizer: Any, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        found: dict[torch.device, Tensor] = {}
        with torch.no_grad():
            for grad in _gradients(optimizer):
                if grad.dtype == torch.float16 and not allow_fp16:
                    raise ValueError("Attempting to unscale FP16 gradients.")
                values = grad._values() if grad.is_sparse else grad
                bad = (~torch.isfinite(values).all()).float()
                found[grad.device] = torch.max(found.get(grad.device, found_inf.to(grad.device)), bad)
                values.mul_(inv_scale.to(grad.device))
        return found

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Step ``optimizer`` unless a gradient wasn't finite."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if not self._per_optimizer_states[id(optimizer)]["unscaled"]:
            self.unscale_(optimizer)
        found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values()
        if not found:
            raise AssertionError("No inf checks were recorded for this optimizer.")
        return None if any(f.item() for f in found) else optimizer.step(*args, **kwargs)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Back off after an overflow, grow after ``growth_interval`` updates without one, or take ``new_scale``."""
        if not self._enabled:
            return
        if self._scale is None or self._growth_tracker is None:
            raise AssertionError("Attempted update but _scale is None. Call scale(outputs) first.")
        if new_scale is not None:
            self._scale.fill_(float(new_scale))
        else:
            self._back_off_or_grow(self._scale, self._growth_tracker)
        self._per_optimizer_states.clear()

    def _back_off_or_grow(self, scale: Tensor, tracker: Tensor) -> None:
        found: list[Tensor] = [
            f for state in self._per_optimizer_states.values() for f in state["found_inf_per_device"].values()
        ]
        if not found:
            raise AssertionError("No inf checks were recorded prior to update.")
        if any(f.item() for f in found):
            scale.mul_(self._backoff_factor)
            tracker.fill_(0)
            return
        tracker.add_(1)
        if tracker.item() == self._growth_interval:
            grown = scale * self._growth_factor
            if torch.isfinite(grown):
                scale.copy_(grown)
            tracker.fill_(0)

    def get_scale(self) -> float:
        """The scale as a number."""
        if not self._enabled:
            return 1.0
        return float(self._init_scale if self._scale is None else self._scale.item())

    def _get_growth_tracker(self) -> int:
        return int(self._init_growth_tracker if self._growth_tracker is None else self._growth_tracker.item())

    def get_growth_interval(self) -> int:
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        self._growth_interval = new_interval

    def is_enabled(self) -> bool:
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """The keys and values of a native GradScaler's state dict."""
        if not self._enabled:
            return {}
        return {
            "scale": self.get_scale(),
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._get_growth_tracker(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a native GradScaler's state dict.

        Raises:
            RuntimeError: if it is empty, as a disabled scaler's is.
        """
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError("The source state dict is empty, possibly because it was saved from a disabled scaler.")
        self._init_scale = state_dict["scale"]
        self._init_growth_tracker = state_dict["_growth_tracker"]
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        if self._scale is not None and self._growth_tracker is not None:
            self._scale.fill_(self._init_scale)
            self._growth_tracker.fill_(self._init_growth_tracker)


def _fresh_state() -> dict[str, Any]:
    return {"unscaled": False, "found_inf_per_device": {}}


def _gradients(optimizer: Any) -> list[Tensor]:
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
