"""``FusedLAMB``: LAMB with the gradient clipping of NVIDIA's BERT inside the step.

Source: apex/optimizers/fused_lamb.py, csrc/multi_tensor_lamb.cu.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from ._base import Closure, FusedOptimizer, evaluate, group_lists, refuse_amsgrad
from ._lamb import clip_divisor, direction_, global_norm, step_by_trust_ratio_
from ._tensor_lists import in_float32


class FusedLAMB(FusedOptimizer):
    """LAMB with Apex's arguments, on any device. torch has none.

    Gradients are clipped by their norm over all groups. The trust ratio is used where ``weight_decay`` isn't 0, or
    everywhere with ``use_nvlamb``. After ``step`` gradients hold the direction of the update, as in Apex.

    Args:
        params: parameters (float16 or float32) or groups of them.
        lr: learning rate.
        bias_correction: divide the averages by ``1 - beta ** step``.
        betas: decay of the averages of gradient and squared gradient.
        eps: added to the root of the second.
        weight_decay: its factor.
        amsgrad: not supported.
        adam_w_mode: decoupled weight decay; else it is added to the gradient.
        grad_averaging: the average of gradients takes ``1 - beta1`` of a new one; else all of it.
        set_grad_none: ``zero_grad`` sets gradients to None; else to zero in place.
        max_grad_norm: the norm that gradients are clipped to.
        use_nvlamb: trust ratio also without weight decay.

    Raises:
        RuntimeError: for ``amsgrad``.
    """

    _settings: ClassVar[tuple[str, ...]] = ("set_grad_none", "adam_w_mode", "use_nvlamb")
    _state_names: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    adam_w_mode: int = 1
    use_nvlamb: bool = False

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        set_grad_none: bool = True,
        max_grad_norm: float = 1.0,
        use_nvlamb: bool = False,
    ) -> None:
        refuse_amsgrad("FusedLAMB", amsgrad)
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "max_grad_norm": max_grad_norm,
        }
        super().__init__(params, defaults)
        self.adam_w_mode = 1 if adam_w_mode else 0
        self.set_grad_none = set_grad_none
        self.use_nvlamb = use_nvlamb

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:  # type: ignore[override,unused-ignore]
        """Update the parameters; return what ``closure`` (called first) returned.

        Raises:
            RuntimeError: for sparse gradients and dtypes that Apex didn't take.
        """
        loss = evaluate(closure)
        lists = group_lists(self)
        device = self.param_groups[0]["params"][0].device
        norm = global_norm([bucket for _, buckets in lists for bucket in buckets], device)
        # Apex read the constructor's value, not the group's
        divisor = clip_divisor(norm, self.defaults["max_grad_norm"])
        for group, buckets in lists:
            self.count_step(group)
            for bucket in buckets:
                work = bucket.in_float32()
                direction_(work, group, bool(self.adam_w_mode), divisor)
                bucket.store(work, grads=True)
                adaptive = bool(self.use_nvlamb or group["weight_decay"] != 0)
                # a half direction counts as it was rounded
                step_by_trust_ratio_(work.params, in_float32(bucket.grads), group["lr"], adaptive)
                bucket.store(work)
        return loss
