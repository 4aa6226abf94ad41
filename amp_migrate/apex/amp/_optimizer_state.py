"""``optimizer._amp_stash``: what amp knows about one optimizer, under Apex's attribute names."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .scaler import LossScaler


#: an optimizer that is named in blocks but never stepped mustn't collect outcomes for ever
_MOST_OUTCOMES = 64


class AmpOptimizerState:
    """State of one optimizer between ``scale_loss`` and ``step``."""

    def __init__(self, master_weights: bool = False) -> None:
        self.master_weights = master_weights
        self.lazy_init_called = False
        self.params_have_scaled_gradients = False
        #: the scaler of the block that is open
        self.loss_scaler: LossScaler | None = None
        #: for the backwards since the last step: loss id, its scaler, and whether it overflowed
        self.overflows: list[tuple[int, LossScaler, bool | Tensor]] = []
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
        return self._first_overflow() is not None

    @property
    def host_knows_of_overflow(self) -> bool:
        """Whether an overflow was found that no flag on the device tells of."""
        return any(overflow is True for _, _, overflow in self.overflows)

    def note_overflow(self, overflow: bool | Tensor, loss_id: int, scaler: LossScaler) -> None:
        """Remember the outcome of a backward until the next step, without reading it.

        Args:
            overflow: whether it overflowed: known, or a flag on the device (0-dim float32, 0 or 1).
            loss_id: which loss it was, for the message.
            scaler: that loss's scaler.
        """
        last = self.overflows[-1] if self.overflows else None
        if last is not None and (last[0] == loss_id or len(self.overflows) == _MOST_OUTCOMES):
            self.overflows[-1] = (loss_id, scaler, _either(last[2], overflow))
        else:
            self.overflows.append((loss_id, scaler, overflow))

    def take_overflow(self) -> tuple[int, LossScaler] | None:
        """Forget all outcomes; return loss id and scaler of the first that overflowed. Reads the device once."""
        first = self._first_overflow()
        self.overflows = []
        return first

    def take_flag(self) -> Tensor | None:
        """Forget all outcomes; return one flag for them (0-dim float32, 0 or 1), None if none is on the device."""
        flags = [overflow for _, _, overflow in self.overflows if isinstance(overflow, Tensor)]
        self.overflows = []
        return functools.reduce(torch.max, flags) if flags else None

    def _first_overflow(self) -> tuple[int, LossScaler] | None:
        flags = [overflow for _, _, overflow in self.overflows if isinstance(overflow, Tensor)]
        read = iter(_read(flags))
        for loss_id, scaler, overflow in self.overflows:
            if next(read) if isinstance(overflow, Tensor) else overflow:
                return loss_id, scaler
        return None


def _read(flags: list[Tensor]) -> list[bool]:
    """The flags on the host, read in one go."""
    if len(flags) > 1:
        return [bool(value) for value in torch.stack([flag.to(flags[0].device) for flag in flags]).tolist()]
    return [bool(flag.item()) for flag in flags]


def _either(one: bool | Tensor, other: bool | Tensor) -> bool | Tensor:
    """Logical or. Flags stay 0 or 1: fused kernels compare them with 1."""
    if one is True or other is True:
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.max(one, other)
    return one if isinstance(one, Tensor) else other
