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
from ._optimizer_state import AmpOptimizerState
from ._patches import patches
from .scaler import LossScaler

_METHODS = (
    "_lazy_init_maybe_master_weights",
    "_master_params_to_model_params",
    "_prepare_amp_backward",
    "_post_amp_backward",
    "_amp_lazy_init",
)


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
        _keep_in_place(stash, with_grad, stash.loss_scaler.scale_tensor)
        return
    stash.set_aside = [(p, p.grad) for p in with_grad]
    for param in with_grad:
        param.grad = None


def _keep_in_place(stash: AmpOptimizerState, params: list[Tensor], scale: Tensor) -> None:
    """Scale earlier gradients like the coming ones. An infinity among them must reach the other processes with the
    next all-reduce, but this process has counted it."""
    grads = [p.grad for p in params if p.grad is not None]
    if grads:
        stash.carried_overflow = _native.multiply_and_check(grads, scale)


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
        if closure is not None and stash.master_weights:
            raise RuntimeError(_NO_CLOSURES)
        if closure is not None and stash.already_patched:  # the skip stays pending
            raise RuntimeError(_NO_CLOSURES)
        if not _skips_in_kernel(self, stash):
            overflowed = stash.take_overflow()
            if overflowed is not None:
                return _skip(self, stash, *overflowed)
        if stash.master_weights:
            self._amp_lazy_init()
        with casts_off():
            result = _step_with_flag(self, stash, step, args, kwargs)
            if stash.master_weights:
                self._master_params_to_model_params()
                clear_master_grads(stash)
        return result

    return amp_step


_NO_CLOSURES = "Currently, Amp does not support closure use with optimizers. Call the closure yourself, then step()."


def _skips_in_kernel(optimizer: Any, stash: AmpOptimizerState) -> bool:
    """Whether nobody on the host needs to know about an overflow: no message, no listener, a kernel that skips."""
    return (
        _amp_state.verbosity == 0
        and not _amp_state.skip_listeners
        and skips_by_itself(optimizer)
        and not stash.host_knows_of_overflow
    )


def _step_with_flag(
    optimizer: Any, stash: AmpOptimizerState, step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Step; a fused optimizer gets the overflow flag that was left on the device and skips in its kernel."""
    flag = stash.take_flag()
    if flag is None:
        return step(*args, **kwargs)
    optimizer.grad_scale, optimizer.found_inf = None, flag
    try:
        return step(*args, **kwargs)
    finally:
        del optimizer.grad_scale, optimizer.found_inf


def _skip(optimizer: Any, stash: AmpOptimizerState, loss_id: int, scaler: LossScaler) -> None:
    """Do nothing instead of a step, once, and say so in Apex's words (programs read them from logs)."""
    scale = scaler.loss_scale()
    maybe_print(f"Gradient overflow.  Skipping step, loss scaler {loss_id} reducing loss scale to {scale}")
    note_skipped_step(optimizer, scale)
    clear_master_grads(stash)


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
        shared = name in ("loss_scaler", "overflows", "carried_overflow")
        setattr(stash, name, value if shared else copy.deepcopy(value, memo))
    stash.is_a_copy = True
    twin._amp_stash = stash
    _attach(twin, stash)
    return twin
