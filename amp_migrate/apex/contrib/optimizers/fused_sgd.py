"""``FusedSGD`` whose gradients come from FP16_Optimizer.

Source: apex/contrib/optimizers/fused_sgd.py.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ...optimizers._base import Closure, FusedOptimizer, Group, evaluate
from ...optimizers._tensor_lists import scaled
from ...optimizers.fused_sgd import check_sgd_arguments, required, sgd_
from ._given_gradients import by_group, entries, write_outputs


class FusedSGD(FusedOptimizer):
    """SGD to be wrapped in ``apex.contrib.optimizers.FP16_Optimizer``; not for amp.

    Args:
        params, lr, momentum, dampening, weight_decay, nesterov, wd_after_momentum, materialize_master_grads: as in
            :class:`apex.optimizers.FusedSGD`.

    Raises:
        ValueError: for negative arguments, or ``nesterov`` without momentum or with dampening.
    """

    _settings: ClassVar[tuple[str, ...]] = ("set_grad_none", "wd_after_momentum")
    _state_names: ClassVar[tuple[str, ...]] = ("momentum_buffer",)
    _step_count_in: ClassVar[str] = "nowhere"
    set_grad_none: bool = False
    wd_after_momentum: bool = False

    def __init__(
        self,
        params: Any,
        lr: Any = required,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        wd_after_momentum: bool = False,
        materialize_master_grads: bool = True,
    ) -> None:
        check_sgd_arguments(lr, momentum, dampening, weight_decay, nesterov)
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults)
        self.wd_after_momentum = wd_after_momentum

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("nesterov", False)

    @torch.no_grad()
    def step(  # type: ignore[override,unused-ignore]
        self,
        closure: Closure | None = None,
        grads: Any = None,
        output_params: Any = None,
        scale: Any = 1.0,
        grad_norms: Any = None,
    ) -> Any:
        """Update the parameters; return what ``closure`` (called first) returned.

        Args:
            closure: recomputes the loss.
            grads: gradients in the order of the parameters: a list (of one group) or a list of lists.
            output_params: likewise, tensors that get the updated parameters, rounded to their dtype.
            scale: what gradients are divided by.
            grad_norms: ignored, as in Apex.

        Raises:
            RuntimeError: after ``amp.initialize``, or without ``grads`` and ``output_params``.
        """
        if hasattr(self, "_amp_stash"):
            raise RuntimeError(
                "apex.contrib.optimizers.FusedSGD should not be used with AMP. Use apex.optimizers.FusedSGD."
            )
        loss = evaluate(closure)
        for name, given in (("grads", grads), ("output_params", output_params)):
            if given is None:
                raise RuntimeError(
                    f"apex.contrib.optimizers.FusedSGD must be wrapped with apex.contrib.optimizers.FP16_Optimizer, "
                    f"which provides {name}. Without it use apex.optimizers.FusedSGD."
                )
        count = len(self.param_groups)
        for group, group_grads, outputs in zip(
            self.param_groups, by_group(grads, count), by_group(output_params, count)
        ):
            self._step_group(group, entries(group_grads, group["params"]), list(outputs), scale)
        return loss

    def _step_group(self, group: Group, grads: list[Any], outputs: list[Any], scale: Any) -> None:
        kinds: dict[Any, list[tuple[Tensor, Tensor]]] = {}
        for param, grad in zip(group["params"], grads):
            if grad is not None:
                state = self.state[param]
                first = state.get("momentum_buffer") is None
                if first:
                    state["momentum_buffer"] = torch.zeros_like(param, memory_format=torch.preserve_format)
                kinds.setdefault((param.device, param.dtype, first), []).append((param, grad.to(param.dtype)))
        for (_, _, first), pairs in kinds.items():
            params = [param for param, _ in pairs]
            buffers = [self.state[param]["momentum_buffer"] for param in params]
            true_grads = scaled([grad for _, grad in pairs], 1.0 / scale)
            sgd_(params, true_grads, buffers, group, first, self.wd_after_momentum)
        write_outputs(outputs, group["params"])
