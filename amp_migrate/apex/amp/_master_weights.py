"""Float32 master weights (O2): made lazily, filled from the model's gradients, copied back after a step.

Source: apex/amp/_process_optimizer.py. The masters stand in the optimizer's ``param_groups`` at the positions of the
float16 parameters. They are made at the first ``zero_grad`` or backward, so that weights loaded before count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import _native
from ._patches import PatchLedger

if TYPE_CHECKING:
    from ._optimizer_state import AmpOptimizerState

_HALF_TYPES = (torch.float16, torch.bfloat16)


def make_masters(optimizer: Any, stash: AmpOptimizerState) -> None:
    """Replace half parameters in all groups by float32 copies, and move their optimizer state over, in float32."""
    for name in ("fp16_groups", "fp32_from_fp16_groups", "fp32_from_fp32_groups"):
        setattr(stash, name, [])
    for name in ("all_fp16_params", "all_fp32_from_fp16_params", "all_fp32_from_fp32_params"):
        setattr(stash, name, [])
    for group in optimizer.param_groups:
        masters_in_group(group, stash)
    for param, master in zip(stash.all_fp16_params, stash.all_fp32_from_fp16_params):
        if param in optimizer.state:
            optimizer.state[master] = optimizer.state.pop(param)
    for param in (*stash.all_fp32_from_fp16_params, *stash.all_fp32_from_fp32_params):
        param.grad = None
    cast_optimizer_state(optimizer, PatchLedger())


def masters_in_group(group: dict[str, Any], stash: AmpOptimizerState) -> None:
    """Replace the half parameters of one group by masters, in place, and list them all in the stash."""
    params = group["params"]
    if isinstance(params, Tensor):
        params = [params]
    elif isinstance(params, set):
        raise TypeError("optimizer parameters need an order that stays the same between runs: use a list, not a set.")
    group["params"] = params = list(params)
    half: list[Tensor] = []
    masters: list[Tensor] = []
    full: list[Tensor] = []
    for position, param in enumerate(params):
        if not param.requires_grad:
            continue
        if param.dtype in _HALF_TYPES:
            master = param.detach().clone().float().requires_grad_()
            params[position] = master
            half.append(param)
            masters.append(master)
        else:
            full.append(param)
    stash.fp16_groups.append(half)
    stash.fp32_from_fp16_groups.append(masters)
    stash.fp32_from_fp32_groups.append(full)
    stash.all_fp16_params += half
    stash.all_fp32_from_fp16_params += masters
    stash.all_fp32_from_fp32_params += full


def cast_optimizer_state(optimizer: Any, undo: PatchLedger) -> None:
    """Cast floating per-parameter state to its parameter's dtype, as loading a state dict does ("step" stays)."""
    for param, state in optimizer.state.items():
        if not isinstance(param, Tensor) or not isinstance(state, dict):
            continue
        for key, value in state.items():
            if isinstance(value, Tensor) and value.is_floating_point() and key != "step":
                undo.set_item(state, key, value.to(dtype=param.dtype, device=param.device))


def gather_master_grads(stash: AmpOptimizerState) -> list[tuple[Tensor, Tensor]]:
    """Give masters the model's new gradients in float32; return their earlier ones, to be added after unscaling."""
    earlier: list[tuple[Tensor, Tensor]] = []
    for param, master in zip(stash.all_fp16_params, stash.all_fp32_from_fp16_params):
        if master.grad is not None:
            earlier.append((master, master.grad))
            master.grad = None
        if param.grad is not None:
            master.grad = param.grad.detach().float()
    return earlier


def copy_masters_to_model(stash: AmpOptimizerState) -> None:
    """Round the masters into the model's half parameters."""
    _native.copy_into(stash.all_fp16_params, stash.all_fp32_from_fp16_params)


def clear_master_grads(stash: AmpOptimizerState) -> None:
    """Drop the masters' gradients, which ``model.zero_grad()`` can't reach."""
    for master in stash.all_fp32_from_fp16_params:
        master.grad = None


def zero_model_grads(stash: AmpOptimizerState) -> None:
    """Zero the gradients of the model's own parameters in place and drop the masters'."""
    for param in (*stash.all_fp16_params, *stash.all_fp32_from_fp32_params):
        if param.grad is not None:
            if param.grad.grad_fn is None:
                param.grad.requires_grad_(False)  # a view into a DDP bucket can't be detached in place
            else:
                param.grad.detach_()
            param.grad.zero_()
    clear_master_grads(stash)
