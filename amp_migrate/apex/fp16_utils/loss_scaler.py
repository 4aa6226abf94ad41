"""The loss scalers of 2018: plain numbers, updated by hand. Old checkpoints of FP16_Optimizer hold them.

Source: apex/fp16_utils/loss_scaler.py.
"""

from __future__ import annotations

from typing import Any, Iterable

import torch
from torch import Tensor

from .fp16util import to_python_float as to_python_float


class LossScaler:
    """A static loss scale.

    Args:
        scale: the scale.
    """

    def __init__(self, scale: float = 1) -> None:
        self.cur_scale = scale

    def has_overflow(self, params: Iterable[Tensor]) -> bool:
        """Always False: a static scale never skips."""
        return False

    @staticmethod
    def _has_inf_or_nan(x: Tensor) -> bool:
        return False

    def update_scale(self, overflow: bool) -> None:
        """Do nothing."""

    @property
    def loss_scale(self) -> float:
        """The scale as a number."""
        return self.cur_scale

    def scale_gradient(self, module: Any, grad_in: Iterable[Tensor], grad_out: Any) -> tuple[Tensor, ...]:
        """A module backward hook that multiplies ``grad_in`` with the scale."""
        return tuple(self.loss_scale * g for g in grad_in)

    def backward(self, loss: Tensor, retain_graph: bool = False) -> None:
        """Backward of ``loss`` times the scale."""
        scaled_loss = loss * self.loss_scale
        scaled_loss.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]


class DynamicLossScaler(LossScaler):
    """A loss scale that shrinks on overflow, down to 1, and grows after ``scale_window`` iterations without one.

    Args:
        init_scale: where it starts.
        scale_factor: what it is multiplied with or divided by.
        scale_window: iterations.
    """

    def __init__(self, init_scale: float = 2**32, scale_factor: float = 2.0, scale_window: int = 1000) -> None:
        self.cur_scale = init_scale
        self.cur_iter = 0
        self.last_overflow_iter = -1
        self.scale_factor = scale_factor
        self.scale_window = scale_window

    def has_overflow(self, params: Iterable[Tensor]) -> bool:
        """Whether a gradient of ``params`` has an inf or nan."""
        return any(p.grad is not None and self._has_inf_or_nan(p.grad.data) for p in params)

    @staticmethod
    def _has_inf_or_nan(x: Tensor) -> bool:
        return not bool(torch.isfinite(x).all())

    def update_scale(self, overflow: bool) -> None:
        """Count an iteration, and shrink or grow the scale."""
        if overflow:
            self.cur_scale = max(self.cur_scale / self.scale_factor, 1)
            self.last_overflow_iter = self.cur_iter
        elif (self.cur_iter - self.last_overflow_iter) % self.scale_window == 0:
            self.cur_scale *= self.scale_factor
        self.cur_iter += 1
