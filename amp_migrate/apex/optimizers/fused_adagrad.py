"""``FusedAdagrad``: Adagrad, with L2 regularisation or decoupled weight decay.

Source: apex/optimizers/fused_adagrad.py, csrc/multi_tensor_adagrad.cu.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from ._base import Bucket, Closure, FusedOptimizer, Group, evaluate
from ._tensor_lists import add_number_, add_product_, added, square_roots, step_along_


class FusedAdagrad(FusedOptimizer):
    """Adagrad with Apex's arguments, on any device.

    Checkpoints of ``torch.optim.Adagrad`` (without ``lr_decay``) load as they are. The other way, torch's Adagrad wants
    ``state[i]["step"] = torch.tensor(0.0)`` for every parameter: without ``lr_decay`` any count does.

    Args:
        params: parameters (float16 or float32) or groups of them.
        lr: learning rate.
        eps: added to the root of the sum of squares.
        weight_decay: its factor.
        set_grad_none: ``zero_grad`` sets gradients to None; else to zero in place.
        adagrad_w_mode: decoupled weight decay; else it is added to the gradient.
    """

    _settings: ClassVar[tuple[str, ...]] = ("set_grad_none", "adagrad_w_mode")
    _state_names: ClassVar[tuple[str, ...]] = ("sum",)
    _step_count_in: ClassVar[str] = "nowhere"
    adagrad_w_mode: int = 0

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
        adagrad_w_mode: bool = False,
    ) -> None:
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay})
        self.adagrad_w_mode = 1 if adagrad_w_mode else 0
        self.set_grad_none = set_grad_none

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:  # type: ignore[override,unused-ignore]
        """Update the parameters; return what ``closure`` (called first) returned.

        Raises:
            RuntimeError: for sparse gradients and dtypes that Apex didn't take.
        """
        loss = evaluate(closure)
        for group in self.param_groups:
            for bucket in self.buckets(group):
                work = bucket.in_float32()
                self._update(work, group)
                bucket.store(work)
        return loss

    def _update(self, work: Bucket, group: Group) -> None:
        params, grads, sums = work.params, work.grads, work.state["sum"]
        decay = group["weight_decay"]
        if decay and not self.adagrad_w_mode:
            grads = added(grads, params, decay)
        add_product_(sums, grads, grads, 1.0)
        roots = square_roots(sums)
        add_number_(roots, group["eps"])
        step_along_(params, grads, roots, group["lr"], decay if self.adagrad_w_mode else 0.0)
