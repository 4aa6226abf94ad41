"""What a caller may say about a checkpoint that the checkpoint doesn't say itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from .errors import CannotConvert

_TARGETS = ("native", "apex")


@dataclass(frozen=True)
class Options:
    """The settings of one conversion.

    Args:
        to: "native" (GradScaler, torch.optim) or "apex".
        scaler: take only this one of several loss scalers, from 0. None keeps all.
        key: the same by name ("loss_scaler1"), or the place of the amp state that ``scaler`` speaks of ("amp_G").
        static_scale: the loss scale was a fixed number; an amp state doesn't say so.
        adam_w_mode: FusedAdam's argument, which no file holds. None: assume True, and say so.
        accumulation_steps: backward passes per optimizer step. Apex counted the former, GradScaler counts the latter.
        strip_prefix: cut from the keys of model states in which every key starts with it ("module.").
        param_order: names of the model's parameters in the order of the optimizer's groups, for masters that can't be
            told apart by their values. With several optimizers: by the optimizer's place in the file.
        drop_unknown: leave out what can't be carried without executing something.
        trust: the caller vouches for the file; what it asks for may be executed.

    Raises:
        CannotConvert: for a value that means nothing.
    """

    to: str = "native"
    scaler: int | None = None
    key: str | None = None
    static_scale: bool = False
    adam_w_mode: bool | None = None
    accumulation_steps: int = 1
    strip_prefix: str | None = None
    param_order: Sequence[str] | Mapping[str, Sequence[str]] | None = None
    drop_unknown: bool = False
    trust: bool = False

    def __post_init__(self) -> None:
        if self.to not in _TARGETS:
            raise CannotConvert(f"a checkpoint is converted to one of {', '.join(_TARGETS)}, not to {self.to!r}")
        if self.accumulation_steps < 1:
            raise CannotConvert(f"accumulation_steps counts from 1, and is {self.accumulation_steps}")
        if self.scaler is not None and self.scaler < 0:
            raise CannotConvert(f"loss scalers count from 0; there is no {self.scaler}")

    def names_for(self, place: str) -> Sequence[str] | None:
        """The names in the order of the optimizer at ``place``, if they were given."""
        order: Any = self.param_order
        return order.get(place) if isinstance(order, Mapping) else order
