"""``optimizer._amp_stash``: what amp knows about one optimizer, under Apex's attribute names."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .scaler import LossScaler


class AmpOptimizerState:
    """State of one optimizer between ``scale_loss`` and ``step``."""

    def __init__(self, master_weights: bool = False) -> None:
        self.master_weights = master_weights
        self.lazy_init_called = False
        self.params_have_scaled_gradients = False
        #: the scaler of the block that is open
        self.loss_scaler: LossScaler | None = None
        #: loss id → (its scaler, whether a backward since the last step overflowed: bool, or flag on the device)
        self.overflows: dict[int, tuple[LossScaler, bool | Tensor]] = {}
        #: flag of an infinity in gradients that were kept in place, which was counted before (several processes)
        self.carried_overflow: Tensor | None = None
        #: gradients from before the block, by parameter
        self.set_aside: list[tuple[Tensor, Tensor]] = []
        self.all_fp16_params: list[Tensor] = []
        self.all_fp32_params: list[Tensor] = []
        self.all_fp32_from_fp16_params: list[Tensor] = []
        self.all_fp32_from_fp32_params: list[Tensor] = []
        self.fp16_groups: list[list[Tensor]] = []
        self.fp32_from_fp16_groups: list[list[Tensor]] = []
        self.fp32_from_fp32_groups: list[list[Tensor]] = []
        #: made by deepcopy: may go through ``initialize`` again
        self.is_a_copy = False

    @property
    def already_patched(self) -> bool:
        """Whether the next step will be skipped. Reads flags back from the device."""
        return any(_is_set(overflow) for _, overflow in self.overflows.values())

    @property
    def host_knows_of_overflow(self) -> bool:
        """Whether an overflow was found that no flag on the device tells of."""
        return any(overflow is True for _, overflow in self.overflows.values())

    def note_overflow(self, overflow: bool | Tensor, loss_id: int, scaler: LossScaler) -> None:
        """Remember the outcome of a backward until the next step, without reading it."""
        _, before = self.overflows.get(loss_id, (scaler, False))
        self.overflows[loss_id] = (scaler, _either(before, overflow))

    def take_overflow(self) -> tuple[int, LossScaler] | None:
        """Forget all outcomes; return loss id and scaler of one that overflowed. Reads one flag per loss."""
        overflows, self.overflows = self.overflows, {}
        for loss_id, (scaler, overflow) in overflows.items():
            if _is_set(overflow):
                return loss_id, scaler
        return None

    def take_flag(self) -> Tensor | None:
        """Forget all outcomes; return one flag for them (0-dim float32, 0 or 1), None if none is on the device."""
        flags = [overflow for _, overflow in self.overflows.values() if isinstance(overflow, Tensor)]
        self.overflows = {}
        return functools.reduce(torch.maximum, flags) if flags else None


def _is_set(overflow: bool | Tensor) -> bool:
    return bool(overflow.item()) if isinstance(overflow, Tensor) else overflow


def _either(one: bool | Tensor, other: bool | Tensor) -> bool | Tensor:
    """Logical or. Flags stay 0 or 1: fused kernels compare them with 1."""
    if one is True or other is True:
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.maximum(one, other)
    return one if isinstance(one, Tensor) else other
