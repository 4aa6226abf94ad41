"""What ``initialize`` adds to an optimizer: gradients set aside and unscaled, and steps that can be skipped.

Source: apex/amp/_process_optimizer.py, whose names programs use (``_amp_stash``, ``_lazy_init_maybe_master_weights``,
``_prepare_amp_backward`` ...). Masters (O2) are in ``_master_weights.py``.
"""

from __future__ import annotations

import copy
import functools
import inspect
import types
from typing import Any, Callable

import torch
from torch import Tensor

from .. import _native
from ._amp_state import _amp_state, maybe_print
from ._casts import casts_off
from ._master_weights import (
    clear_master_grads,
    copy_masters_to_model,
    gather_master_grads,
    make_masters,
    masters_in_group,
    zero_model_grads,
)
from ._patches import patches
from .scaler import LossScaler

_METHODS = (
    "_lazy_init_maybe_master_weights",
    "_master_params_to_model_params",
    "_prepare_amp_backward",
    "_post_amp_backward",
    "_amp_lazy_init",
)


class AmpOptimizerState:
    """What amp knows about one optimizer, under Apex's attribute names (``optimizer._amp_stash``)."""

    def __init__(self, master_weights: bool = False) -> None:
        self.master_weights = master_weights
        self.lazy_init_called = False
        #: an overflow was found: the next step is skipped
        self.already_patched = False
        self.params_have_scaled_gradients = False
        #: the scaler of the block that is open, and the one whose overflow makes the next step a no-op
        self.loss_scaler: LossScaler | None = None
        self.overflowed: tuple[int, LossScaler | None] = (0, None)
        #: an overflow flag that was left on the device, for optimizers that skip by themselves
        self.found_inf: Tensor | None = None
        #: gradients from before the block, by parameter
        self.set_aside: list[tuple[Tensor, Tensor]] = []
        self.all_fp16_params: list[Tensor] = []
        self.all_fp32_params: list[Tensor] = []
        self.all_fp32_from_fp16_params: list[Tensor] = []
        self.all_fp32_from_fp32_params: list[Tensor] = []
        self.fp16_groups: list[list[Tensor]] = []
        self.fp32_from_fp16_groups: list[list[Tensor]] = []
        self.fp32_from_fp32_groups: list[list[Tensor]] = []
        #: gradients kept in place hold an infinity that was counted before (several processes)
        self.carries_overflow = False
        self.is_a_copy = False

    def add_overflow_flag(self, flag: Tensor) -> None:
        """Remember an overflow flag (0-dim, 0.0 or 1.0) without reading it. It stays 0 or 1: kernels compare with 1."""
        self.found_inf = flag if self.found_inf is None else torch.maximum(self.found_inf, flag)


def _process_optimizer(optimizer: Any, properties: Any) -> Any:
    """Give ``optimizer`` its stash and methods, in place.

    Raises:
        RuntimeError: if it went through ``initialize`` before, or has one of the method names already.
    """
    check_unprocessed(optimizer)
    stash = AmpOptimizerState(bool(properties.master_weights))
    patches.set_attribute(optimizer, "_amp_stash", stash)
    _attach(optimizer, stash)
    return optimizer


def check_unprocessed(optimizer: Any) -> None:
    """Raise Apex's RuntimeError for an optimizer that can't be initialized; a deep copy of one can."""
    if hasattr(optimizer, "_amp_stash") and not getattr(optimizer._amp_stash, "is_a_copy", False):
        raise RuntimeError(
            "A given optimizer should only be passed through amp.initialize once. Call it once, after building the "
            f"{type(optimizer).__name__}, or build a new one."
        )
    for name in _METHODS:
        if hasattr(optimizer, name) and not hasattr(optimizer, "_amp_stash"):
            raise RuntimeError(f"Incoming optimizer already has {name} defined.")


def _attach(optimizer: Any, stash: AmpOptimizerState) -> None:
    """Set the methods on the instance; torch leaves them out of pickles."""
    methods: dict[str, Callable[..., Any]] = {
        "_lazy_init_maybe_master_weights": _lazy_init,
        "_amp_lazy_init": _lazy_init_once,
        "_prepare_amp_backward": _prepare_backward,
        "_post_amp_backward": _post_backward,
        "__deepcopy__": _deepcopy_optimizer,
        "step": _amp_step(optimizer.step),
    }
    if stash.master_weights:
        methods["_master_params_to_model_params"] = _copy_masters
        methods["zero_grad"] = _zero_grad_with_masters
        methods["add_param_group"] = _add_param_group_with_masters(optimizer.add_param_group)
    for name, function in methods.items():
        patches.set_attribute(optimizer, name, types.MethodType(function, optimizer))


def _lazy_init(self: Any) -> None:
    stash = self._amp_stash
    if stash.master_weights:
        make_masters(self, stash)
        return
    params = [p for group in self.param_groups for p in group["params"]]
    stash.all_fp16_params = [p for p in params if p.dtype == torch.float16]
    stash.all_fp32_params = [p for p in params if p.dtype != torch.float16]


def _lazy_init_once(self: Any) -> None:
    if not self._amp_stash.lazy_init_called:
        self._lazy_init_maybe_master_weights()
        self._amp_stash.lazy_init_called = True


def _copy_masters(self: Any) -> None:
    copy_masters_to_model(self._amp_stash)


def _zero_grad_with_masters(self: Any, set_to_none: bool = False) -> None:
    """Zero the model's gradients in place and drop the masters', as Apex did; ``set_to_none`` changes nothing."""
    self._amp_lazy_init()
    zero_model_grads(self._amp_stash)


def _add_param_group_with_masters(add: Callable[..., Any]) -> Callable[..., Any]:
    def add_param_group(self: Any, new_group: dict[str, Any]) -> None:
        self._amp_lazy_init()
        masters_in_group(new_group, self._amp_stash)
        add(new_group)

    return functools.wraps(add)(add_param_group)


def _prepare_backward(self: Any) -> None:
    """Set gradients of earlier backwards aside, so that the block sees the new ones alone.

    With several processes they stay in place, scaled: moved aside, an earlier micro-batch would be lost under DDP's
    ``gradient_as_bucket_view``, and ranks would diverge under ``no_sync`` (docs/decisions.md).
    """
    self._amp_lazy_init()
    stash = self._amp_stash
    for param in stash.all_fp16_params if stash.master_weights else ():
        param.grad = None
    model_params = stash.all_fp32_from_fp32_params if stash.master_weights else _params(self)
    with_grad = [p for p in model_params if p.grad is not None]
    if stash.loss_scaler is not None and _native.process_group_size() > 1:
        _keep_in_place(stash, with_grad, stash.loss_scaler.loss_scale())
        return
    stash.set_aside = [(p, p.grad) for p in with_grad]
    for param in with_grad:
        param.grad = None


def _keep_in_place(stash: AmpOptimizerState, params: list[Tensor], scale: float) -> None:
    """Scale earlier gradients like the coming ones. An infinity among them must reach the other processes with the
    next all-reduce, but this process has counted it."""
    grads = [p.grad for p in params if p.grad is not None]
    stash.carries_overflow = stash.already_patched and not all(bool(torch.isfinite(g).all()) for g in grads)
    for grad in grads:
        grad.mul_(scale)


def _post_backward(self: Any, scaler: LossScaler) -> None:
    """Unscale the new gradients and add those set aside; note an overflow of the new ones on the scaler."""
    self._amp_lazy_init()
    stash = self._amp_stash
    if stash.master_weights:
        stash.set_aside += gather_master_grads(stash)
    scaler.unscale_gradients(self)
    put_back(stash)


def put_back(stash: AmpOptimizerState) -> None:
    """Add the gradients that were set aside to the new ones."""
    both: list[tuple[Tensor, Tensor]] = []
    for param, earlier in stash.set_aside:
        if param.grad is None:
            param.grad = earlier
        else:
            both.append((param.grad, earlier))
    stash.set_aside = []
    if both:
        _native.add_into([new for new, _ in both], [earlier for _, earlier in both])


def restore_set_aside(stash: AmpOptimizerState) -> None:
    """After an exception in the block: gradients as they were before it."""
    for param, earlier in stash.set_aside:
        param.grad = earlier
    stash.set_aside = []


def _params(optimizer: Any) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _amp_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``step`` for good: it looks at the stash each time, so schedulers may wrap it before or after."""
    function = getattr(step, "__func__", step)

    @functools.wraps(function)
    def amp_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        stash = self._amp_stash
        closure = args[0] if args else kwargs.get("closure")
        if closure is not None and (stash.master_weights or stash.already_patched):
            raise RuntimeError(
                "Currently, Amp does not support closure use with optimizers. Call the closure yourself, then step()."
            )
        if stash.already_patched:
            return _skip(self, stash)
        if stash.master_weights:
            self._amp_lazy_init()
        with casts_off():
            result = _step_with_flag(self, stash, step, args, kwargs)
            if stash.master_weights:
                self._master_params_to_model_params()
                clear_master_grads(stash)
        return result

    return amp_step


def _step_with_flag(
    optimizer: Any, stash: AmpOptimizerState, step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Step; a fused optimizer gets the overflow flag that was left on the device and skips in its kernel."""
    if stash.found_inf is None:
        return step(*args, **kwargs)
    optimizer.grad_scale, optimizer.found_inf = None, stash.found_inf
    stash.found_inf = None
    try:
        return step(*args, **kwargs)
    finally:
        del optimizer.grad_scale, optimizer.found_inf


def _skip(optimizer: Any, stash: AmpOptimizerState) -> None:
    """Do nothing instead of a step, once, and say so in Apex's words (programs read them from logs)."""
    stash.already_patched = False
    stash.found_inf = None
    loss_id, scaler = stash.overflowed
    scale = scaler.loss_scale() if scaler is not None else 1.0
    maybe_print(f"Gradient overflow.  Skipping step, loss scaler {loss_id} reducing loss scale to {scale}")
    clear_master_grads(stash)
    note_skipped_step(optimizer, scale)


def note_skipped_step(optimizer: Any, scale: float) -> None:
    """Tell schedulers and listeners. Schedulers warn if they step before the optimizer did; a skipped step counts."""
    optimizer._opt_called = True
    if hasattr(optimizer, "_step_count"):
        optimizer._step_count += 1
    for listener in list(_amp_state.skip_listeners):
        listener(optimizer, scale)


def skips_by_itself(optimizer: Any) -> bool:
    """Whether ``optimizer`` takes an overflow flag on the device (fused optimizers of torch 2.0 and newer)."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    return "grad_scaler" not in inspect.signature(type(optimizer).step).parameters


def _deepcopy_optimizer(self: Any, memo: dict[int, Any]) -> Any:
    """A copy that works with amp on its own: copied together with the model, its masters belong to the copy."""
    twin: Any = object.__new__(type(self))
    memo[id(self)] = twin
    twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
    stash = AmpOptimizerState(self._amp_stash.master_weights)
    for name, value in vars(self._amp_stash).items():
        shared = name in ("loss_scaler", "overflowed", "found_inf")
        setattr(stash, name, value if shared else copy.deepcopy(value, memo))
    stash.is_a_copy = True
    twin._amp_stash = stash
    _attach(twin, stash)
    return twin
