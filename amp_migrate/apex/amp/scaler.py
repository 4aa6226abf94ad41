"""``LossScaler``: Apex's loss scaler interface over a native GradScaler.

Source: apex/amp/scaler.py. Scale, counter and overflow flag live on the device, in the native scaler; they are read
back when a program looks at ``_loss_scale`` or ``_unskipped``, and once per step to know whether to skip it.
"""

from __future__ import annotations

import functools
from typing import Any, Sequence

import torch
from torch import Tensor

from ... import options
from ...notices import notice_once
from ._amp_state import master_params as master_params
from ._grad_scaler import make_grad_scaler

#: Apex had no floor, and its scale could reach zero after some 160 overflows in a row (NVIDIA/apex#834).
SMALLEST_SCALE = 2.0**-126


class LossScaler:
    """Scale of one loss: dynamic, or static if ``loss_scale`` is a number (then overflows are never skipped).

    Args:
        loss_scale: "dynamic" or the static scale.
        init_scale: where a dynamic scale starts.
        scale_factor: accepted and ignored, as in Apex: the factor is 2.
        scale_window: backwards without an overflow before the scale grows.
        min_loss_scale: floor of a dynamic scale.
        max_loss_scale: ceiling of a dynamic scale.
        sharded: the model's parameters are sharded over the processes (FSDP); not in Apex.
    """

    warned_no_fused_kernel = False
    warned_unscaling_non_fp32_grad = False
    has_fused_kernel = False

    def __init__(
        self,
        loss_scale: Any,
        init_scale: float = options.INITIAL_SCALE,
        scale_factor: float = 2.0,
        scale_window: int = options.GROWTH_INTERVAL,
        min_loss_scale: float | None = None,
        max_loss_scale: float = options.MAX_LOSS_SCALE,
        sharded: bool = False,
    ) -> None:
        self.dynamic = loss_scale == "dynamic"
        self._mirror = min(max_loss_scale, init_scale) if self.dynamic else float(loss_scale)
        self._unskipped_mirror = 0
        #: backwards since scale and counter were last known here
        self._unread = 0
        self._max_loss_scale = max_loss_scale
        self._min_loss_scale = min_loss_scale
        self._window = scale_window
        self._noted_overflow = False
        self._flag: Tensor | None = None
        self._overflow_buffer: Tensor | None = None
        self._native: Any = None
        self._sharded = sharded

    @property
    def _loss_scale(self) -> float:
        self._read_back()
        return self._mirror

    @_loss_scale.setter
    def _loss_scale(self, value: float) -> None:
        self._read_back()
        self._set(float(value), self._unskipped_mirror)

    @property
    def _unskipped(self) -> int:
        self._read_back()
        return self._unskipped_mirror

    @_unskipped.setter
    def _unskipped(self, value: int) -> None:
        self._read_back()
        self._set(self._mirror, int(value))

    @property
    def _scale_seq_len(self) -> int:
        return self._window

    @_scale_seq_len.setter
    def _scale_seq_len(self, value: int) -> None:
        self._window = value
        if self._native is not None:
            self._native.set_growth_interval(value)

    @property
    def _overflow_buf(self) -> Tensor:
        """A one-element int tensor, 1 after an overflow. What is written to it counts at ``update_scale``."""
        if self._overflow_buffer is None:
            self._overflow_buffer = torch.tensor([int(self._has_overflow)], dtype=torch.int32)
        return self._overflow_buffer

    def loss_scale(self) -> float:
        """The scale as a number."""
        return self._loss_scale

    def scale(self, loss: Tensor) -> Tensor:
        """Return ``loss.float()`` times the scale, on the loss's device."""
        if self._native is None:
            self._native = make_grad_scaler(
                loss.device, self._mirror, self._unskipped_mirror, self._window, self._sharded
            )
        scaled: Tensor = self._native.scale(loss.float())
        return scaled

    def unscale_gradients(self, optimizer: Any) -> None:
        """Unscale the gradients of ``optimizer`` in place and note on the device whether one isn't finite."""
        if self._native is not None and self._native._scale is not None:
            self._native.unscale_(optimizer)

    @property
    def scale_tensor(self) -> Tensor:
        """The scale on the device, 0-dim float32; there once a loss was scaled."""
        tensor: Tensor = self._native._scale
        return tensor

    @property
    def _has_overflow(self) -> bool:
        """Whether the last backward overflowed. Reads it back from the device."""
        return self._noted_overflow or (self._flag is not None and bool(self._flag.item()))

    @_has_overflow.setter
    def _has_overflow(self, value: bool) -> None:
        self._noted_overflow, self._flag = bool(value), None

    def clear_overflow_state(self) -> None:
        """Forget the overflows seen since the last update."""
        self._has_overflow = False
        if self._overflow_buffer is not None:
            self._overflow_buffer.zero_()
        self._forget_flags()

    def update_scale(self) -> bool:
        """Back off or count after a backward; return whether the coming step must be skipped."""
        overflow = self.advance()
        return bool(overflow.item()) if isinstance(overflow, Tensor) else overflow

    def advance(self, carried: Tensor | None = None) -> bool | Tensor:
        """Back off or count after a backward, without reading anything back.

        Args:
            carried: flag (0-dim) of an overflow that was counted before and is still in the gradients; where it is
                set, scale and counter stay.

        Returns:
            Whether the backward overflowed: a flag on the device (0-dim float32, 0 or 1), or a bool where the host
            knows (static scale, no gradients, an overflow that the program noted itself).
        """
        if not self.dynamic:
            self._unskipped_mirror += 1
            self._forget_flags()
            return False
        found = self._native.found_infs() if self._native is not None else []
        if not found or self._noted_overflow or self._buffer_says_overflow():
            return self._advance_on_host(found)
        before = self._native.snapshot() if carried is not None else None
        # before update(), which adds the flags up in place: 2 or 3 would be no flag any more
        self._flag = functools.reduce(torch.max, (flag.to(found[0].device) for flag in found))
        self._native.update()
        self._apply_bounds(self._flag)
        if carried is not None and before is not None:
            self._native.restore_where(carried, before)
        return self._flag

    def _apply_bounds(self, flag: Tensor) -> None:
        """Apex's bounds: the floor counts when the scale backs off, the ceiling when it grows."""
        self._unread += 1
        self._native.raise_to(self._min_loss_scale or SMALLEST_SCALE, flag)
        growths = (self._unskipped_mirror + self._unread) // self._window
        if growths and self._mirror * 2.0 ** min(growths, 64) > self._max_loss_scale:
            self._native.lower_to(self._max_loss_scale, flag)

    def _advance_on_host(self, found: list[Tensor]) -> bool:
        overflow = self._noted_overflow or self._buffer_says_overflow() or any(bool(f.item()) for f in found)
        self._read_back()
        self._set(*self._after_backward(overflow))
        self._noted_overflow = overflow
        return overflow

    def _after_backward(self, overflow: bool) -> tuple[float, int]:
        """Scale and counter after one more backward, by Apex's rule."""
        if overflow:
            return max(self._min_loss_scale or SMALLEST_SCALE, self._mirror / 2.0), 0
        unskipped = self._unskipped_mirror + 1
        if unskipped == self._window:
            return min(self._max_loss_scale, self._mirror * 2.0), 0
        return self._mirror, unskipped

    def _forget_flags(self) -> None:
        if self._native is not None:
            self._native.forget_overflows()

    def _buffer_says_overflow(self) -> bool:
        return self._overflow_buffer is not None and bool(self._overflow_buffer.item())

    def _set(self, scale: float, unskipped: int) -> None:
        self._mirror, self._unskipped_mirror = scale, unskipped
        if self._native is not None:
            self._native.put(scale, unskipped)
            self._native.forget_overflows()

    def _read_back(self) -> None:
        if not self._unread:
            return
        self._unread = 0
        self._mirror = self._native.get_scale()
        self._unskipped_mirror = self._native._get_growth_tracker()
        if self._mirror <= SMALLEST_SCALE and not self._min_loss_scale:
            notice_once(
                f"The loss scale fell to {SMALLEST_SCALE} and stays there: every step overflows. Look for NaN in "
                "the loss or the inputs, or set min_loss_scale in amp.initialize."
            )

    def unscale(
        self,
        model_grads: Sequence[Tensor | None],
        master_grads: Sequence[Tensor | None],
        unused_scale: Any = None,
        models_are_masters: bool = False,
        scale_override: float | None = None,
    ) -> None:
        """Write ``model_grad / scale`` into each master gradient and note an overflow."""
        scale = self._loss_scale if scale_override is None else scale_override
        if self._noted_overflow or (scale == 1.0 and models_are_masters and not self.dynamic):
            return
        for model, master in zip(model_grads, master_grads):
            if model is not None and master is not None:
                self._note_overflow(model)
                master.data.copy_(model.data.to(master.dtype) / scale)

    def unscale_with_stashed(
        self,
        model_grads: Sequence[Tensor | None],
        stashed_master_grads: Sequence[Tensor | None],
        master_grads: Sequence[Tensor | None],
        scale_override: tuple[float, float, float] | None = None,
    ) -> None:
        """Write ``model_grad / scale + stashed`` into each master gradient and note an overflow of the former."""
        have, stash_has, out = scale_override if scale_override is not None else (self._loss_scale, 1.0, 1.0)
        if self._noted_overflow:
            return
        for model, stashed, master in zip(model_grads, stashed_master_grads, master_grads):
            if model is not None and stashed is not None and master is not None:
                self._note_overflow(model)
                fresh = model.data.to(master.dtype) * (out / have)
                master.data.copy_(fresh + stashed.data * (out / stash_has))

    def _note_overflow(self, grad: Tensor) -> None:
        if self.dynamic and not bool(torch.isfinite(grad.data).all()):
            self._noted_overflow = True

    def __getstate__(self) -> dict[str, Any]:
        """Apex's own attributes, so that files stay readable on either side."""
        return {
            "dynamic": self.dynamic,
            "_loss_scale": self._loss_scale,
            "_max_loss_scale": self._max_loss_scale,
            "_min_loss_scale": self._min_loss_scale,
            "_scale_seq_len": self._scale_seq_len,
            "_unskipped": self._unskipped,
            "_has_overflow": self._has_overflow,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(  # type: ignore[misc]
            "dynamic" if state["dynamic"] else state["_loss_scale"],
            scale_window=state["_scale_seq_len"],
            min_loss_scale=state.get("_min_loss_scale"),
            max_loss_scale=state.get("_max_loss_scale", options.MAX_LOSS_SCALE),
        )
        self._set(float(state["_loss_scale"]), int(state["_unskipped"]))
        self._has_overflow = bool(state.get("_has_overflow", False))
