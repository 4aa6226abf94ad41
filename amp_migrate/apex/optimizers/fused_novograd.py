"""``FusedNovoGrad``: NovoGrad, whose second average is one norm per tensor.

Source: apex/optimizers/fused_novograd.py, csrc/multi_tensor_novograd.cu, csrc/multi_tensor_l2norm_kernel.cu.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ._base import Bucket, Closure, FusedOptimizer, Group, evaluate, refuse_amsgrad
from ._tensor_lists import add_, norms, quotients, scale_, step_along_

#: Apex's ``norm_type`` → the order of the norm
_ORDERS = {2: 2.0, 0: float("inf")}


class FusedNovoGrad(FusedOptimizer):
    """NovoGrad with Apex's arguments, on any device. torch has none.

    The averages of the norms are in the group: ``exp_avg_sq = [of float16 parameters, of float32 ones]``, in the order
    of those that have a gradient (norms, not squares). Unlike Apex's it works with amp's O2.

    Args:
        params: parameters (float16 or float32) or groups of them; one device per group.
        lr: learning rate.
        bias_correction: divide the averages by ``1 - beta ** step`` (the norm by its root).
        betas: decay of the averages of gradient and norm.
        eps: added to the norm.
        weight_decay: its factor.
        amsgrad: not supported.
        reg_inside_moment: divide the gradient by its norm, and add the weight decay, before averaging; else after.
        grad_averaging: the average takes ``1 - beta1`` of a new gradient; else all of it.
        norm_type: 2 for the L2 norm, 0 for the largest absolute value.
        init_zero: norms start at zero; else with those of the first step.
        set_grad_none: ``zero_grad`` sets gradients to None; else to zero in place.

    Raises:
        RuntimeError: for ``amsgrad``; in ``step`` for another ``norm_type``.
    """

    _settings: ClassVar[tuple[str, ...]] = ("set_grad_none", "moment_mode")
    _state_names: ClassVar[tuple[str, ...]] = ("exp_avg",)
    #: 0: regularisation inside the moment, 1: outside
    moment_mode: int = 1

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        reg_inside_moment: bool = False,
        grad_averaging: bool = True,
        norm_type: int = 2,
        init_zero: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        refuse_amsgrad("FusedNovoGrad", amsgrad)
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "norm_type": norm_type,
            "init_zero": init_zero,
        }
        super().__init__(params, defaults)
        self.moment_mode = 0 if reg_inside_moment else 1
        self.set_grad_none = set_grad_none

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what Apex's FusedNovoGrad saved, also before its first step."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            if group["params"] and "exp_avg_sq" in group:
                device = group["params"][0].device
                group["exp_avg_sq"] = [saved.float().to(device) for saved in group["exp_avg_sq"]]

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:  # type: ignore[override,unused-ignore]
        """Update the parameters; return what ``closure`` (called first) returned.

        Raises:
            RuntimeError: for sparse gradients, dtypes that Apex didn't take, a ``norm_type`` other than 2 and 0, or if
                other parameters have gradients than at the first step.
        """
        loss = evaluate(closure)
        for group in self.param_groups:
            self.count_step(group)
            buckets = {bucket.params[0].dtype: bucket for bucket in self._one_device(group)}
            if not buckets:
                continue
            kinds = (buckets.get(torch.float16), buckets.get(torch.float32))
            works = [bucket.in_float32() if bucket is not None else None for bucket in kinds]
            new = [self._norms(work, group) for work in works]
            averages = self._averages(group, new)
            for bucket, work, norm, average in zip(kinds, works, new, averages):
                if bucket is not None and work is not None:
                    _blend_(average, norm, group)
                    self._update(work, group, average)
                    bucket.store(work)
        return loss

    def _one_device(self, group: Group) -> list[Bucket]:
        buckets = self.buckets(group)
        devices = sorted({str(bucket.params[0].device) for bucket in buckets})
        if len(devices) > 1:
            raise RuntimeError(
                f"A parameter group of FusedNovoGrad is on {' and '.join(devices)}. Make one group per device."
            )
        return buckets

    def _norms(self, work: Bucket | None, group: Group) -> Tensor:
        order = _ORDERS.get(group["norm_type"])
        if order is None:
            raise RuntimeError(
                f"FusedNovoGrad only support l2/inf norm now: norm_type 2 or 0, not {group['norm_type']}."
            )
        if work is None:
            return torch.zeros(0, device=group["params"][0].device)
        return norms(work.grads, order)

    def _averages(self, group: Group, new: list[Tensor]) -> list[Tensor]:
        """The group's averages of norms, made at the first step."""
        if "exp_avg_sq" not in group:
            start = torch.zeros_like if group["init_zero"] else torch.clone
            group["exp_avg_sq"] = [start(norm) for norm in new]
        averages: list[Tensor] = group["exp_avg_sq"]
        before, now = [a.numel() for a in averages], [n.numel() for n in new]
        if before != now:
            raise RuntimeError(
                f"FusedNovoGrad keeps one norm per gradient: {before} (float16, float32) so far in this group, but "
                f"{now} gradients now. Build a new optimizer after changing which parameters train or their dtype."
            )
        return averages

    def _update(self, work: Bucket, group: Group, average: Tensor) -> None:
        params, grads, moments = work.params, work.grads, work.state["exp_avg"]
        (beta1, beta2), step, decay, rate = group["betas"], group["step"], group["weight_decay"], group["lr"]
        corrected = bool(group["bias_correction"])
        correction1 = 1.0 - beta1**step if corrected else 1.0
        correction2 = (1.0 - beta2**step) ** 0.5 if corrected else 1.0
        share = 1.0 - beta1 if group["grad_averaging"] else 1.0
        denominators = average / correction2 + group["eps"]
        scale_(moments, beta1)
        if self.moment_mode == 0:
            inside = quotients(grads, list(denominators.unbind()))
            if decay:
                add_(inside, params, decay)
            add_(moments, inside, share)
            add_(params, moments, -rate / correction1)
            return
        add_(moments, grads, share)
        step_along_(params, moments, list((denominators * correction1).unbind()), rate, decay)


def _blend_(average: Tensor, norm: Tensor, group: Group) -> None:
    """``a = b2 a + (1 - b2) n``, of squares for the L2 norm."""
    beta2 = group["betas"][1]
    if group["norm_type"] == 0:
        average.mul_(beta2).add_(norm, alpha=1.0 - beta2)
    else:
        average.mul_(average).mul_(beta2).addcmul_(norm, norm, value=1.0 - beta2).sqrt_()
