"""The state that Apex's module-level interface shares between calls: the only global state of the drop-in.

Source: apex/amp/_amp_state.py. Programs read and write its attributes, so they keep Apex's names. As in Apex,
``opt_properties``, ``loss_scalers`` and ``handle`` don't exist before ``initialize`` (code probes with ``hasattr``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterator

import torch

from .. import _native

if TYPE_CHECKING:
    from ._casts import CastPlan
    from .frontend import Properties
    from .scaler import LossScaler


class AmpState:
    """Options, loss scalers and handle of the last ``initialize``."""

    opt_properties: Properties
    loss_scalers: list[LossScaler]
    handle: Any
    min_loss_scale: float | None
    max_loss_scale: float

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Back to what it is right after the import."""
        vars(self).clear()
        self.hard_override = False
        self.allow_incoming_model_not_fp32 = False
        self.verbosity = 1
        #: where casts are on outside of models; None without O1
        self.ambient: CastPlan | None = None
        #: set by ``amp.init(allow_banned=True)``; holds for later calls of ``initialize`` too
        self.allow_banned = False
        #: called with (optimizer, loss scale) whenever a step is skipped; the recorder listens here
        self.skip_listeners: list[Callable[[Any, float], None]] = []

    @property
    def _amp_state(self) -> AmpState:
        """Itself: ``import apex.amp._amp_state as s`` binds this object, where readers expect the module."""
        return self


_amp_state = AmpState()


def warn_or_err(msg: str) -> None:
    """Raise RuntimeError, or print a warning if the program set ``_amp_state.hard_override``."""
    if _amp_state.hard_override:
        print("Warning:  " + msg)
    else:
        raise RuntimeError(msg)


def maybe_print(msg: str, rank0: bool = False) -> None:
    """Print unless ``verbosity=0``; with ``rank0``, only in the first of several processes."""
    if _amp_state.verbosity > 0 and not (rank0 and _native.process_group_size() > 1 and torch.distributed.get_rank()):
        print(msg)


def master_params(optimizer: Any) -> Iterator[torch.Tensor]:
    """Iterate over the parameters that ``optimizer`` updates, in order: the float32 masters under O2."""
    for group in optimizer.param_groups:
        yield from group["params"]
