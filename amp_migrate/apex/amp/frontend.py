"""``initialize``, ``state_dict`` and ``load_state_dict``. Source: apex/amp/frontend.py."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Mapping

from ... import options
from ...notices import notice_once
from ._amp_state import _amp_state, maybe_print
from ._initialize import _initialize
from ._properties import Properties, opt_levels

O0, O1, O2, O3 = (opt_levels[name] for name in ("O0", "O1", "O2", "O3"))

__all__ = ["O0", "O1", "O2", "O3", "Properties", "initialize", "load_state_dict", "opt_levels", "state_dict"]

#: keywords of Huawei's Apex for Ascend that choose between its kernels; here they mean nothing
_ASCEND_KEYWORDS = {
    "combine_grad",
    "combine_ddp",
    "ddp_replica_count",
    "check_combined_tensors",
    "user_cast_preferred",
}


def initialize(
    models: Any,
    optimizers: Any = None,
    enabled: bool = True,
    opt_level: str = "O1",
    cast_model_type: Any = None,
    patch_torch_functions: bool | None = None,
    keep_batchnorm_fp32: Any = None,
    master_weights: bool | None = None,
    loss_scale: Any = None,
    cast_model_outputs: Any = None,
    num_losses: int = 1,
    verbosity: int = 1,
    min_loss_scale: float | None = None,
    max_loss_scale: float = options.MAX_LOSS_SCALE,
    dynamic_init_scale: float = options.INITIAL_SCALE,
    **ascend: Any,
) -> Any:
    """Prepare models and optimizers for mixed precision, in place, and return the same objects.

    Args:
        models: a module, or a list of modules; not yet wrapped in DataParallel or DistributedDataParallel.
        optimizers: an optimizer, a list of them, or None for inference.
        enabled: if False, nothing happens here nor in any other call of amp.
        opt_level: "O0" to "O3"; "O4" and "O5" are ROCm's bfloat16 levels.
        cast_model_type, patch_torch_functions, keep_batchnorm_fp32, master_weights, loss_scale: override what the
            level presets; None doesn't. Booleans and the scale may be text ("True", "128.0", "dynamic").
        cast_model_outputs: dtype that floating outputs of the models are cast to.
        num_losses: how many loss scales there are (``loss_id`` of ``scale_loss``).
        verbosity: 0 prints nothing.
        min_loss_scale, max_loss_scale: bounds of a dynamic scale.
        dynamic_init_scale: where a dynamic scale starts (Ascend).

    Returns:
        ``models``, or ``(models, optimizers)`` if optimizers were given; each in the form it had.

    Raises:
        RuntimeError: unknown level, options that contradict it, float16 or already parallel models, an optimizer that
            was initialized before. Nothing is changed then.
        TypeError: models or optimizers in a tuple, or something else.
    """
    unknown = sorted(set(ascend) - _ASCEND_KEYWORDS)
    if unknown:
        raise TypeError(f"initialize() got an unexpected keyword argument {unknown[0]!r}")
    if ascend:
        notice_once(f"amp.initialize: {', '.join(sorted(ascend))} choose Ascend kernels and mean nothing here.")
    properties = Properties()
    if not enabled:
        _amp_state.opt_properties = properties
        _amp_state.verbosity = verbosity
        return models if optimizers is None else (models, optimizers)
    opt_levels[options.parse_level(opt_level).name](properties)
    overrides = {
        "cast_model_type": cast_model_type,
        "patch_torch_functions": patch_torch_functions,
        "keep_batchnorm_fp32": keep_batchnorm_fp32,
        "master_weights": master_weights,
        "loss_scale": loss_scale,
    }
    for name, value in overrides.items():
        if value is not None:
            setattr(properties, name, value)
    _amp_state.verbosity, verbosity_before = verbosity, _amp_state.verbosity
    try:
        result = _initialize(
            models, optimizers, properties, num_losses, cast_model_outputs,
            min_loss_scale, max_loss_scale, dynamic_init_scale,
        )  # fmt: skip
    except BaseException:
        _amp_state.verbosity = verbosity_before
        raise
    _print_options(properties)
    return result


def _print_options(properties: Properties) -> None:
    maybe_print(f"Selected optimization level {opt_levels[properties.opt_level].brief}", True)
    for name, value in properties.options.items():
        maybe_print(f"{name:22} : {value}", True)


def _loss_scalers(caller: str) -> list[Any]:
    if not hasattr(_amp_state, "loss_scalers"):
        raise AttributeError(
            f"amp.{caller}() has no loss scalers: call amp.initialize(model, optimizer, opt_level=...) first, and not "
            f"with enabled=False. Guard the call with the flag that turns amp on."
        )
    return _amp_state.loss_scalers


def state_dict(destination: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return ``{"loss_scaler0": {"loss_scale": float, "unskipped": int}, ...}``.

    Raises:
        AttributeError: before ``initialize``, or after ``initialize(enabled=False)`` (as Apex).
    """
    if destination is None:
        destination = OrderedDict()
    for index, scaler in enumerate(_loss_scalers("state_dict")):
        destination[f"loss_scaler{index}"] = {"loss_scale": scaler.loss_scale(), "unskipped": scaler._unskipped}
    return destination


def load_state_dict(state_dict: Mapping[str, Any]) -> None:
    """Set scales and counters from :func:`state_dict`, or from the state dict of a native GradScaler.

    Raises:
        RuntimeError: for keys that are neither; nothing is loaded then.
        AttributeError: before ``initialize``.
    """
    scalers = _loss_scalers("load_state_dict")
    entries = _entries(state_dict)
    if len(entries) != len(scalers):
        print(f"Warning: state_dict contains {len(entries)} entries, while {len(scalers)} loss_scalers are used")
    if len(entries) > len(scalers):
        print(f"Skipping loss_scaler[{len(scalers)}], since num_losses was set to {len(scalers)}")
    for scaler, entry in zip(scalers, entries):
        scaler._loss_scale = entry["loss_scale"]
        scaler._unskipped = entry["unskipped"]


def _entries(state_dict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The loss scalers in a state dict, in its order."""
    if "scale" in state_dict and "_growth_tracker" in state_dict:  # a GradScaler's own
        return [{"loss_scale": state_dict["scale"], "unskipped": state_dict["_growth_tracker"]}]
    unexpected = [key for key in state_dict if "loss_scaler" not in key]
    if unexpected:
        names = ", ".join(f'"{key}"' for key in unexpected)
        raise RuntimeError(
            f"Error(s) in loading state_dict. Unexpected key(s) in state_dict: {names}. "
            "amp.load_state_dict takes what amp.state_dict() returned, or the state dict of a torch GradScaler."
        )
    return list(state_dict.values())
