"""``FusedMixedPrecisionLamb``: LAMB that keeps float32 copies of half parameters and never waits for the host.

Source: apex/optimizers/fused_mixed_precision_lamb.py, csrc/multi_tensor_lamb_mp.cu.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from .. import _native
from . import _without_host
from ._base import Bucket, Closure, FusedOptimizer, Group, evaluate, group_lists, refuse_amsgrad
from ._lamb import clip_divisor, direction_, global_norm, step_by_trust_ratio_
from ._tensor_lists import in_float32


class FusedMixedPrecisionLamb(FusedOptimizer):
    """LAMB whose learning rate and step count are tensors on the device.

    A GradScaler leaves unscaling and skipping to ``step``. The other arguments are those of :class:`FusedLAMB`.

    Args:
        params: parameters or groups of them, one dtype per group.
        lr: learning rate; a 0-dim float32 tensor in the groups.
        step: steps that were done before; an int32 tensor in the groups.
        reduced_precision_dtype: parameters of this dtype are updated through float32 copies, with float32 state.

    Raises:
        RuntimeError: for ``amsgrad``.
    """

    _settings: ClassVar[tuple[str, ...]] = (
        "set_grad_none",
        "adam_w_mode",
        "use_nvlamb",
        "reduced_precision_dtype",
        "param_groups_full_precision",
    )
    _state_names: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    _dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float16, torch.float32, torch.bfloat16)
    _step_supports_amp_scaling = True
    adam_w_mode: int = 1
    use_nvlamb: bool = False
    reduced_precision_dtype: torch.dtype | None = None

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        step: int = 0,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        max_grad_norm: float = 1.0,
        use_nvlamb: bool = False,
        reduced_precision_dtype: torch.dtype | None = None,
    ) -> None:
        refuse_amsgrad("FusedMixedPrecisionLamb", amsgrad)
        self.reduced_precision_dtype = reduced_precision_dtype
        #: float32 copies of reduced parameters, group by group; filled at the first step
        self.param_groups_full_precision: list[dict[str, Any]] = []
        self.adam_w_mode = 1 if adam_w_mode else 0
        self.use_nvlamb = use_nvlamb
        defaults = {
            "lr": torch.tensor(lr, dtype=torch.float32),
            "step": torch.tensor([step], dtype=torch.int32),
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "max_grad_norm": max_grad_norm,
        }
        super().__init__(params, defaults)

    def _state_dtype(self, param: torch.Tensor) -> torch.dtype:
        return torch.float32 if param.dtype == self.reduced_precision_dtype else param.dtype

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, with tensors of its own for learning rate and step count."""
        super().add_param_group(param_group)
        self._place(self.param_groups[-1])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what this class or :class:`FusedLAMB` saved; the float32 copies are made anew from the parameters."""
        super().load_state_dict(state_dict)
        self.param_groups_full_precision = []
        for group in self.param_groups:
            self._place(group)

    def _place(self, group: Group) -> None:
        device = group["params"][0].device
        group["lr"] = _without_host.tensor_on(device, group["lr"], torch.float32)
        group["step"] = _without_host.tensor_on(device, group["step"], torch.int32, (1,))

    @torch.no_grad()
    def step(self, closure: Closure | None = None, grad_scaler: Any = None) -> Any:  # type: ignore[override,unused-ignore]
        """Update the parameters; return what ``closure`` (called first) returned.

        Args:
            closure: recomputes the loss.
            grad_scaler: the GradScaler that leaves unscaling and skipping to this step.
        """
        loss = evaluate(closure)
        _without_host.full_precision_copies(
            self, self.param_groups_full_precision, lambda p: p.dtype == self.reduced_precision_dtype
        )
        device = self.param_groups[0]["params"][0].device
        answer = _without_host.ask(grad_scaler, self)
        overflow = answer.on(device)
        lists = group_lists(self)
        norm = global_norm([bucket for _, buckets in lists for bucket in buckets], device)
        divisor = clip_divisor(norm * overflow.inverse_scale, self.defaults["max_grad_norm"])
        for index, (group, buckets) in enumerate(lists):
            _without_host.count_step(group, answer, device)
            for bucket in buckets:
                self._update(index, group, bucket, overflow, divisor)
        return loss

    def _update(
        self, index: int, group: Group, bucket: Bucket, overflow: _without_host.Overflow, divisor: torch.Tensor
    ) -> None:
        work, keep = bucket.in_float32(), overflow.keep
        if keep is not None:
            work.grads = _without_host.finite(work.grads, keep)
            divisor = divisor.masked_fill(keep == 0, 1.0)
        copies = _without_host.copies_of(group, self.param_groups_full_precision[index])
        work.params = [copies.get(param, own) for param, own in zip(bucket.params, work.params)]
        direction_(work, group, bool(self.adam_w_mode), divisor, overflow.inverse_scale, keep)
        if work.grads is not bucket.grads:
            _native.copy_into(bucket.grads, work.grads)
        adaptive = bool(self.use_nvlamb or group["weight_decay"] != 0)
        step_by_trust_ratio_(work.params, in_float32(bucket.grads), group["lr"], adaptive, keep)
        bucket.store(work)
