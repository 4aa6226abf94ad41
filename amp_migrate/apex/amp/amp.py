"""``amp.init`` and the functions that mark others to be cast. Source: apex/amp/amp.py, and ROCm's for bfloat16."""

from __future__ import annotations

from typing import Any

import torch

from ._amp_state import _amp_state
from ._devices import likely_device_type
from ._initialize import start_casts
from ._registry import TO_BFLOAT16, TO_FLOAT, TO_HALF, make_decorator, make_registrar
from .handle import AmpHandle, NoOpHandle

half_function = make_decorator(TO_HALF, "Cast the decorated function's floating arguments to float16.")
float_function = make_decorator(TO_FLOAT, "Cast the decorated function's floating arguments to float32.")
bfloat16_function = make_decorator(TO_BFLOAT16, "Cast the decorated function's floating arguments to bfloat16.")
promote_function = make_decorator(None, "Cast the decorated function's arguments to float32 if their types differ.")

register_half_function = make_registrar(TO_HALF, "Cast the arguments of ``module.name`` to float16.")
register_float_function = make_registrar(TO_FLOAT, "Cast the arguments of ``module.name`` to float32.")
register_bfloat16_function = make_registrar(TO_BFLOAT16, "Cast the arguments of ``module.name`` to bfloat16.")
register_promote_function = make_registrar(None, "Cast the arguments of ``module.name`` to the widest of their types.")


def init(
    enabled: bool = True,
    loss_scale: Any = "dynamic",
    enable_caching: bool = True,
    verbose: bool = False,
    allow_banned: bool = False,
) -> AmpHandle | NoOpHandle:
    """Switch casts on for everything in this thread, the way of programs from 2018, and return the handle.

    Args:
        enabled: if False, the handle passes everything through.
        loss_scale: "dynamic", or the static scale of ``handle.scale_loss``.
        enable_caching: kept on the handle; cast weights are kept inside models' forward only.
        verbose: kept on the handle.
        allow_banned: cast float16 inputs of ``F.binary_cross_entropy`` to float32 instead of raising.
    """
    if not enabled:
        return NoOpHandle()
    _amp_state.allow_banned = _amp_state.allow_banned or allow_banned
    return start_casts((likely_device_type(),), torch.float16, AmpHandle(loss_scale, enable_caching, verbose))
