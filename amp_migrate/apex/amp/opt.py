"""``OptimWrapper``: the optimizer of the old handle interface, with a loss scale for each loss.

Source: apex/amp/opt.py.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Iterator

from torch import Tensor

from .. import _native
from ._amp_state import master_params
from ._casts import casts_off
from ._process_optimizer import note_skipped_step
from .scaler import LossScaler


class OptimWrapper:
    """Scale losses, one loss scale each, and skip the step if one of them overflowed.

    Args:
        optimizer: any torch optimizer; every other attribute is its own.
        amp_handle: what ``amp.init`` returned.
        num_loss: how many ``scale_loss`` blocks come before each step.
    """

    def __init__(self, optimizer: Any, amp_handle: Any, num_loss: int) -> None:
        self._optimizer = optimizer
        self._amp_handle = amp_handle
        self._num_loss = num_loss
        self._loss_idx = 0
        self._skip_next = [False] * num_loss
        self._loss_scaler = [LossScaler("dynamic") for _ in range(num_loss)]

    @contextlib.contextmanager
    def scale_loss(self, loss: Tensor) -> Iterator[Tensor]:
        """Scale one loss; on exit unscale its gradients and add those of the losses before it.

        Raises:
            RuntimeError: for more blocks than ``num_loss`` before a step.
        """
        if not self._amp_handle.is_active():
            yield loss
            return
        scaler = self._cur_loss_scaler()
        earlier = self._set_gradients_aside() if self._loss_idx > 0 else []
        with casts_off():
            yield scaler.scale(loss)
        scaler.clear_overflow_state()
        scaler.unscale_gradients(self._optimizer)
        self._skip_next[self._loss_idx] = scaler.update_scale()
        self._loss_idx += 1
        self._add(earlier)

    def _set_gradients_aside(self) -> list[Tensor | None]:
        earlier = [p.grad for p in master_params(self._optimizer)]
        for param in master_params(self._optimizer):
            param.grad = None
        return earlier

    def _add(self, earlier: list[Tensor | None]) -> None:
        for param, grad in zip(master_params(self._optimizer), earlier):
            if param.grad is None:
                param.grad = grad
            elif grad is not None:
                _native.add_into([param.grad], [grad])

    def _cur_loss_scaler(self) -> LossScaler:
        if self._loss_idx >= self._num_loss:
            raise RuntimeError(
                f"More than num_loss={self._num_loss} scale_loss block(s) before optimizer.step(). "
                "Pass the number of losses to handle.wrap_optimizer(optimizer, num_loss=...)."
            )
        return self._loss_scaler[self._loss_idx]

    def step(self, closure: Any = None) -> Any:
        """Step, or skip if one of the losses overflowed.

        Raises:
            NotImplementedError: for a closure while casts are on.
        """
        if not self._amp_handle.is_active():
            return self._optimizer.step(closure=closure)
        self._loss_idx = 0
        if closure is not None:
            raise NotImplementedError("The `closure` argument is unsupported by the amp optimizer wrapper.")
        if any(self._skip_next):
            logging.getLogger("apex.amp").info("Gradient overflow, skipping update")
            self._skip_next = [False] * self._num_loss
            note_skipped_step(self._optimizer, self._loss_scaler[0].loss_scale())
            return None
        with casts_off():
            return self._optimizer.step()

    def __getattr__(self, attr: str) -> Any:
        if attr == "_optimizer":  # not there yet while unpickling
            raise AttributeError(attr)
        return getattr(self._optimizer, attr)

    def __repr__(self) -> str:
        return repr(self._optimizer)

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's state dict."""
        state: dict[str, Any] = self._optimizer.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        return self._optimizer.load_state_dict(state_dict)

    def zero_grad(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.zero_grad(*args, **kwargs)

    def add_param_group(self, param_group: dict[str, Any]) -> Any:
        return self._optimizer.add_param_group(param_group)
