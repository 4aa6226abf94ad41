"""``scale_loss``, ``disable_casts`` and the handles of the old interface.

Source: apex/amp/handle.py; the old interface as it was before 2019-04 (889d1712~1), when it still worked.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import types
from types import TracebackType
from typing import Any, Iterator

import torch
from torch import Tensor

from .. import _native
from ._amp_state import _amp_state
from ._casts import casts_off, disable_casts
from ._patches import patches
from ._process_optimizer import note_skipped_step, restore_set_aside
from ._registry import casts_are_on
from .opt import OptimWrapper
from .scaler import LossScaler

__all__ = ["AmpHandle", "NoOpHandle", "disable_casts", "scale_loss"]


class scale_loss:
    """Scale a loss for backward; on leaving the block, unscale the gradients and update the loss scale::

        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()

    On entry it yields ``loss.float() * scale``. On exit the gradients of all ``optimizers`` are true gradients again,
    those from before the block added; the scale has been updated; and if one of the new gradients wasn't finite, the
    next ``step()`` of each of these optimizers does nothing, once. After an exception the gradients are as before.

    Args:
        loss: tensor of any shape and floating dtype.
        optimizers: the optimizer, or list of them, whose gradients this backward makes.
        loss_id: which of the ``num_losses`` loss scales to use.
        model: ignored, as in Apex.
        delay_unscale: leave the gradients scaled on exit, to accumulate more; a later block unscales them.
        delay_overflow_check: unscale, but leave the scale to the program (``loss_scaler.update_scale()``).

    Raises:
        RuntimeError: before ``amp.initialize``, or for an optimizer that didn't go through it.
        TypeError: if an optimizer is passed where ``loss_id`` belongs.
        IndexError: if ``loss_id`` isn't below ``num_losses``.
    """

    def __init__(
        self,
        loss: Tensor,
        optimizers: Any,
        loss_id: int = 0,
        model: Any = None,
        delay_unscale: bool = False,
        delay_overflow_check: bool = False,
    ) -> None:
        self._loss = loss
        self._optimizers = optimizers
        self._loss_id = loss_id
        self._delay_unscale = delay_unscale
        self._delay_overflow_check = delay_overflow_check
        self._passes_through = False

    def __enter__(self) -> Tensor:
        if not hasattr(_amp_state, "opt_properties"):
            raise RuntimeError(
                "Invoked 'with amp.scale_loss`, but internal Amp state has not been initialized.  "
                "model, optimizer = amp.initialize(model, optimizer, opt_level=...) must be called "
                "before `with amp.scale_loss`, also where amp is off (then with enabled=False)."
            )
        if not _amp_state.opt_properties.enabled:
            self._passes_through = True
            return self._loss
        self._optimizers = _as_list(self._optimizers)
        self._scaler = _scaler_of(self._loss_id)
        self._casts_off = casts_off()
        if self._needs_no_scaling():
            self._passes_through = True
            return self._loss.float()
        _check_initialized(self._optimizers)
        scaled = self._scaler.scale(self._loss)
        self._prepare()
        self._casts_off.__enter__()
        return scaled

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._passes_through:
            return
        self._casts_off.__exit__(kind, error, trace)
        stashes = [o._amp_stash for o in self._optimizers]
        if kind is not None:
            for stash in stashes:
                restore_set_aside(stash)
        elif self._delay_unscale:
            for stash in stashes:
                stash.params_have_scaled_gradients = True
        else:
            with torch.no_grad():
                self._unscale()
                self._update_scale(stashes)

    def _needs_no_scaling(self) -> bool:
        scaler = self._scaler
        return not _amp_state.opt_properties.master_weights and not scaler.dynamic and scaler.loss_scale() == 1.0

    def _prepare(self) -> None:
        for optimizer in self._optimizers:
            stash = optimizer._amp_stash
            stash.loss_scaler = self._scaler
            stash.carried_overflow = None
            if not self._delay_unscale and not stash.params_have_scaled_gradients:
                optimizer._prepare_amp_backward()

    def _unscale(self) -> None:
        self._scaler.clear_overflow_state()
        for optimizer in self._optimizers:
            optimizer._post_amp_backward(self._scaler)
            optimizer._amp_stash.params_have_scaled_gradients = False

    def _update_scale(self, stashes: list[Any]) -> None:
        if self._delay_overflow_check:
            return
        carried = [stash.carried_overflow for stash in stashes if stash.carried_overflow is not None]
        overflow = self._scaler.advance(functools.reduce(torch.max, carried) if carried else None)
        for stash in stashes:
            stash.note_overflow(overflow, self._loss_id, self._scaler)


def _as_list(optimizers: Any) -> list[Any]:
    return list(optimizers) if isinstance(optimizers, (list, tuple)) else [optimizers]


def _scaler_of(loss_id: Any) -> LossScaler:
    scalers = _amp_state.loss_scalers
    if hasattr(loss_id, "param_groups"):
        raise TypeError(
            "amp.scale_loss got an optimizer in the place of loss_id. "
            "Pass several optimizers as a list: amp.scale_loss(loss, [optimizer1, optimizer2])."
        )
    try:
        scaler: LossScaler = scalers[loss_id]
    except IndexError:
        raise IndexError(
            f"loss_id={loss_id}, but amp.initialize made {len(scalers)} loss scaler(s). "
            f"Pass num_losses={loss_id + 1} or more to amp.initialize."
        ) from None
    return scaler


def _check_initialized(optimizers: list[Any]) -> None:
    for optimizer in optimizers:
        if not hasattr(optimizer, "_amp_stash"):
            raise RuntimeError(
                f"The {type(optimizer).__name__} given to amp.scale_loss was not returned by amp.initialize. "
                "Build optimizers before amp.initialize and pass them to it; don't rebuild them afterwards."
            )


class AmpHandle:
    """What ``amp.init`` returns: casts that can be switched off, and loss scaling of the old interface."""

    def __init__(self, loss_scale: Any = "dynamic", enable_caching: bool = True, verbose: bool = False) -> None:
        self._enable_caching = enable_caching
        self._verbose = verbose
        self._default_scaler: LossScaler | None = LossScaler(loss_scale)

    def is_active(self) -> bool:
        """Whether casts are on in this thread right now."""
        return casts_are_on()

    @property
    def _is_active(self) -> bool:
        return self.is_active()

    @_is_active.setter
    def _is_active(self, value: bool) -> None:
        plan = _amp_state.ambient
        for device_type in plan.device_types if plan is not None else ():
            _native.switch_autocast(device_type, bool(value))

    def _disable_casts(self) -> Any:
        return disable_casts()

    def wrap_optimizer(self, optimizer: Any, num_loss: int = 1) -> OptimWrapper:
        """Return ``optimizer`` with a ``scale_loss`` of its own: a loss scale for each of ``num_loss`` losses."""
        self._default_scaler = None
        return OptimWrapper(optimizer, self, num_loss)

    @contextlib.contextmanager
    def scale_loss(self, loss: Tensor, optimizer: Any) -> Iterator[Tensor]:
        """The old ``with amp_handle.scale_loss(loss, optimizer) as scaled``.

        Raises:
            RuntimeError: after ``wrap_optimizer``, which has its own.
        """
        scaler = self._default_scaler
        if scaler is None:
            raise RuntimeError(
                "After calling `handle.wrap_optimizer()`, you must explicitly use `optimizer.scale_loss(loss)`."
            )
        if not self.is_active():
            yield loss
            return
        with casts_off():
            yield scaler.scale(loss)
        scaler.clear_overflow_state()
        scaler.unscale_gradients(optimizer)
        if scaler.update_scale():
            _skip_next_step(optimizer, scaler)
        self._clear_cache()

    def _clear_cache(self) -> None:
        torch.clear_autocast_cache()

    def _deactivate(self) -> None:
        """Casts off for good, functions as they were."""
        patches.undo_all()

    @property
    def has_cache(self) -> bool:
        return self._enable_caching

    @property
    def verbose(self) -> bool:
        return self._verbose


def _skip_next_step(optimizer: Any, scaler: LossScaler) -> None:
    original = vars(optimizer).get("step")

    def skip(self: Any, *args: Any, **kwargs: Any) -> None:
        logging.getLogger("apex.amp").warning("Gradient overflow, skipping update")
        if original is None:
            del self.step
        else:
            self.step = original
        note_skipped_step(self, scaler.loss_scale())

    optimizer.step = types.MethodType(skip, optimizer)


class NoOpHandle:
    """What ``amp.init(enabled=False)`` returns: everything passes through."""

    _is_active = False
    has_cache = False
    verbose = False

    def is_active(self) -> bool:
        return False

    @contextlib.contextmanager
    def _disable_casts(self) -> Iterator[None]:
        yield

    def wrap_optimizer(self, optimizer: Any, num_loss: int = 1) -> OptimWrapper:
        return OptimWrapper(optimizer, self, num_loss)

    @contextlib.contextmanager
    def scale_loss(self, loss: Tensor, optimizer: Any) -> Iterator[Tensor]:
        yield loss

    def _clear_cache(self) -> None:
        """Nothing is cached."""

    def _deactivate(self) -> None:
        """Nothing is active."""
