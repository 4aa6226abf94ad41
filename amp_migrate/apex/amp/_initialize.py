"""The work of ``amp.initialize``: check everything, then change models and optimizers, or take all of it back.

Source: apex/amp/_initialize.py.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Callable, Iterable

import torch
from torch import nn

from ... import options
from ...notices import notice_once
from .. import _native
from ._amp_state import _amp_state, warn_or_err
from ._bce import guard_binary_cross_entropy
from ._casts import CastPlan, switch_ambient_on
from ._devices import device_types_of
from ._forward import ForwardPlan, wrap_forward
from ._master_weights import cast_optimizer_state
from ._patches import PatchLedger, patches
from ._process_optimizer import _process_optimizer, check_unprocessed
from ._registry import apply_registered_functions
from .handle import AmpHandle
from .scaler import LossScaler

_PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)
_NOT_BARE = ("FP16_Optimizer",)


def _initialize(
    models: Any,
    optimizers: Any,
    properties: Any,
    num_losses: int,
    cast_model_outputs: torch.dtype | None,
    min_loss_scale: float | None,
    max_loss_scale: float,
    init_scale: float,
) -> Any:
    """Change models and optimizers as ``properties`` say; see ``frontend.initialize``."""
    model_list = _models_as_list(models)
    optimizer_list = _optimizers_as_list(optimizers)
    check_models(model_list)
    check_optimizers(optimizer_list)
    if not _amp_state.allow_incoming_model_not_fp32:
        check_params_fp32(model_list)
    scalers = [
        LossScaler(
            properties.loss_scale,
            init_scale,
            min_loss_scale=min_loss_scale,
            max_loss_scale=max_loss_scale,
            sharded=_native.is_sharded(module for model in model_list for module in model.modules()),
        )
        for _ in range(num_losses)
    ]
    undo_on_failure = PatchLedger()
    mark = patches.mark()
    try:
        _change_models(model_list, properties, cast_model_outputs, device_types_of(model_list), undo_on_failure)
        for optimizer in optimizer_list:
            if properties.cast_model_type:
                cast_optimizer_state(optimizer, undo_on_failure)
            _process_optimizer(optimizer, properties)
        if properties.patch_torch_functions:
            start_casts(device_types_of(model_list), _compute_type(properties))
    except BaseException:
        patches.undo_to(mark)
        undo_on_failure.undo_all()
        raise
    _amp_state.opt_properties = properties
    _amp_state.loss_scalers = scalers
    _amp_state.min_loss_scale, _amp_state.max_loss_scale = min_loss_scale, max_loss_scale
    return models if optimizers is None else (models, optimizers)


def start_casts(device_types: tuple[str, ...], dtype: torch.dtype, handle: AmpHandle | None = None) -> AmpHandle:
    """Switch casts on in this thread and patch what the program registered; return the handle that is now current."""
    switch_ambient_on(CastPlan.for_devices(device_types, dtype))
    guard_binary_cross_entropy()
    apply_registered_functions()
    _amp_state.handle = handle if handle is not None else AmpHandle()
    return _amp_state.handle  # type: ignore[no-any-return]


def _compute_type(properties: Any) -> torch.dtype:
    return getattr(torch, options.LEVELS[properties.opt_level].compute_type)  # type: ignore[no-any-return]


def _models_as_list(models: Any) -> list[nn.Module]:
    if isinstance(models, nn.Module):
        return [models]
    if isinstance(models, list):
        return models
    raise TypeError(f"models must be either a single model or a list of models, not {_kind(models)}.")


def _optimizers_as_list(optimizers: Any) -> list[Any]:
    if optimizers is None:
        return []
    if isinstance(optimizers, list):
        return optimizers
    if isinstance(optimizers, torch.optim.Optimizer) or _looks_like_optimizer(optimizers):
        return [optimizers]
    raise TypeError(f"optimizers must be either a single optimizer or a list of optimizers, not {_kind(optimizers)}.")


def _looks_like_optimizer(value: Any) -> bool:
    """A wrapper such as LARC isn't an Optimizer but has its interface."""
    return all(hasattr(value, name) for name in ("param_groups", "step", "zero_grad"))


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}" + (" (write a list)" if isinstance(value, tuple) else "")


def check_models(models: Iterable[nn.Module]) -> None:
    """Raise RuntimeError for a model that is wrapped for parallel work already."""
    for model in models:
        if isinstance(model, _PARALLEL) or type(model).__name__ == "DistributedDataParallel":
            name = type(model).__name__
            raise RuntimeError(
                f"Incoming model is an instance of {name}. Parallel wrappers should only be applied to the model(s) "
                f"AFTER the model(s) have been returned from amp.initialize: initialize first, then {name}(model)."
            )


def check_optimizers(optimizers: Iterable[Any]) -> None:
    """Raise RuntimeError for an FP16_Optimizer or an optimizer that was initialized before."""
    for optimizer in optimizers:
        if any(cls.__name__ in _NOT_BARE for cls in type(optimizer).__mro__):
            raise RuntimeError(
                f"An incoming optimizer is an instance of {type(optimizer).__name__}. Pass the bare optimizer to "
                "amp.initialize; amp does what FP16_Optimizer did."
            )
        check_unprocessed(optimizer)


def check_params_fp32(models: Iterable[nn.Module]) -> None:
    """Raise RuntimeError for float16 parameters or buffers."""
    for model in models:
        for kind, named in (("param", model.named_parameters()), ("buffer", model.named_buffers())):
            for name, tensor in named:
                if tensor.dtype == torch.float16:
                    warn_or_err(
                        f"Found {kind} {name} with type {tensor.type()}, expected float32. When using amp.initialize, "
                        "you do not need to call .half() on your model before passing it, no matter what "
                        "optimization level you choose."
                    )


def _change_models(
    models: list[nn.Module],
    properties: Any,
    output_dtype: torch.dtype | None,
    device_types: tuple[str, ...],
    undo: PatchLedger,
) -> None:
    casts, dtype = None, None
    if properties.patch_torch_functions:
        casts = CastPlan.for_devices(device_types, _compute_type(properties))
    if properties.cast_model_type:
        dtype = _possible_type(properties.cast_model_type, device_types)
        output_dtype = output_dtype or torch.float32
        for model in models:
            cast_model(model, dtype, bool(properties.keep_batchnorm_fp32), undo)
            _save_in_float32(model)
    plan = ForwardPlan(casts, dtype, output_dtype)
    for model in models:
        wrap_forward(model, plan)


def _possible_type(dtype: torch.dtype, device_types: tuple[str, ...]) -> torch.dtype:
    for device_type in device_types:
        if not _native.computes_in(device_type, dtype):
            notice_once(
                f"This torch ({torch.__version__}) lacks {dtype} layers on {device_type!r}: the model stays float32. "
                "Use a newer torch, or another device, for mixed precision."
            )
            return torch.float32
    return dtype


def cast_model(model: nn.Module, dtype: torch.dtype, keep_batchnorm_fp32: bool, undo: PatchLedger) -> None:
    """Cast floating parameters and buffers to ``dtype``, in place; affine batchnorm layers stay as they are if asked.

    Source: ``convert_network`` in apex/fp16_utils/fp16util.py.
    """
    for module in model.modules():
        if keep_batchnorm_fp32 and isinstance(module, nn.modules.batchnorm._BatchNorm) and module.affine:
            continue
        for param in module._parameters.values():
            if param is not None and param.is_floating_point():
                undo.record(_set_data(param, param.data))
                param.data = param.data.to(dtype)
                if param.grad is not None:
                    undo.record(_set_data(param.grad, param.grad.data))
                    param.grad.data = param.grad.data.to(dtype)
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                undo.set_item(module._buffers, name, buffer.to(dtype))
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()


def _set_data(tensor: torch.Tensor, data: torch.Tensor) -> Callable[[], None]:
    return lambda: setattr(tensor, "data", data)


class O2StateDictHook:
    """Makes ``state_dict()`` of a half module float32."""

    def __call__(self, module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: Any) -> None:
        for key, value in state_dict.items():
            if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16):
                state_dict[key] = value.to(torch.float32)


class _HooksWithoutOurs(OrderedDict):  # type: ignore[type-arg]
    """State dict hooks that are pickled without ours, so that files can be read where amp_migrate isn't installed."""

    def __reduce__(self) -> Any:
        return (OrderedDict, ([(k, v) for k, v in self.items() if not isinstance(v, O2StateDictHook)],))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _HooksWithoutOurs(self)


def _save_in_float32(model: nn.Module) -> None:
    for module in model.modules():
        hooks = module._state_dict_hooks
        if any(isinstance(hook, O2StateDictHook) for hook in hooks.values()):
            continue
        patches.set_attribute(module, "_state_dict_hooks", _HooksWithoutOurs(hooks))
        module._register_state_dict_hook(O2StateDictHook())  # type: ignore[no-untyped-call]
