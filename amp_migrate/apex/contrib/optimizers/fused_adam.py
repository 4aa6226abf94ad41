"""``FusedAdam`` as it was before August 2019: eps before the bias correction, gradients may be handed to ``step``.

Source: apex/contrib/optimizers/fused_adam.py, apex/contrib/csrc/optimizers/fused_adam_cuda_kernel.cu.
"""

from __future__ import annotations

from typing import Any, ClassVar, Iterator

import torch
from torch import Tensor

from ...optimizers._base import Closure, FusedOptimizer, Group, evaluate, refuse_amsgrad
from ...optimizers._moments import update_moments_
from ...optimizers._tensor_lists import (
    HALF_TYPES,
    Factor,
    add_number_,
    norms,
    scaled,
    square_roots,
    step_along_,
)
from ._given_gradients import by_group, entries, write_outputs


class FusedAdam(FusedOptimizer):
    """The old FusedAdam: ``p -= lr sqrt(c2) / c1 (m / (sqrt(v) + eps) + weight_decay p)``, c the bias corrections.

    Neither Adam nor AdamW: eps joins before the correction, and the decay is multiplied by the corrected rate.

    Args:
        params: float32 or float64 parameters, or groups of them; of a half model, its float32 masters.
        lr: learning rate.
        bias_correction: use the corrections; else both are 1.
        betas: decay of the averages of gradient and squared gradient.
        eps: added to the root of the second, or inside it.
        eps_inside_sqrt: ``sqrt(v + eps)``.
        weight_decay: its factor.
        max_grad_norm: divide gradients so that their norm is at most this; 0: don't.
        amsgrad: not supported.
        use_mt: accepted; lists of tensors are always updated together.
        amp_scale_adjustment: kept as an attribute.

    Raises:
        RuntimeError: for ``amsgrad``.
    """

    _settings: ClassVar[tuple[str, ...]] = ("set_grad_none", "eps_mode", "_amp_scale_adjustment", "_use_multi_tensor")
    _state_names: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    _step_count_in: ClassVar[str] = "parameter"
    set_grad_none: bool = False
    #: 0: eps inside the root, 1: outside
    eps_mode: int = 1

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        eps_inside_sqrt: bool = False,
        weight_decay: float = 0.0,
        max_grad_norm: float = 0.0,
        amsgrad: bool = False,
        use_mt: bool = False,
        amp_scale_adjustment: float = 1.0,
    ) -> None:
        refuse_amsgrad("FusedAdam", amsgrad)
        self._use_multi_tensor = use_mt
        self._amp_scale_adjustment = amp_scale_adjustment
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "max_grad_norm": max_grad_norm,
        }
        super().__init__(params, defaults)
        self.eps_mode = 0 if eps_inside_sqrt else 1

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
            grads: gradients in the order of the parameters, half or like them; None: the parameters' own.
            output_params: tensors that get the updated parameters, rounded to their dtype.
            scale: what gradients are divided by.
            grad_norms: the norm of each group's gradients, still scaled; found here if needed and None.

            Grads and output_params are a list (of one group) or a list of lists.

        Raises:
            RuntimeError: for sparse gradients and half parameters.
        """
        loss = evaluate(closure)
        count = len(self.param_groups)
        groups = zip(
            self.param_groups,
            by_group(grads, count),
            by_group(output_params, count),
            [None] * count if grad_norms is None else grad_norms,
        )
        for group, group_grads, outputs, norm in groups:
            self._step_group(group, group_grads, outputs, scale, norm)
        return loss

    def _step_group(self, group: Group, grads: Any, outputs: Any, scale: Any, norm: Any) -> None:
        params = group["params"]
        triples = [
            (param, param.grad if grad is None else grad, output)
            for param, grad, output in zip(params, entries(grads, params), entries(outputs, params))
            if param.grad is not None or grad is not None
        ]
        if not triples:
            return
        for param, grad, _ in triples:
            self._check_pair(param, grad)
            self._count(param)
        divisor = _divisor(group, [grad for _, grad, _ in triples], scale, norm)
        for same in _alike(triples, self.state):
            self._update(group, [t[0] for t in same], [t[1] for t in same], divisor)
        write_outputs([t[2] for t in triples], [t[0] for t in triples])

    def _check_pair(self, param: Tensor, grad: Tensor) -> None:
        if grad.is_sparse:
            raise RuntimeError(
                "FusedAdam does not support sparse gradients. Give that parameter to torch.optim.SparseAdam, or build "
                "the embedding with sparse=False."
            )
        if param.dtype in HALF_TYPES:
            raise RuntimeError(
                f"expected parameter to be of float type, not {param.dtype}: wrap the optimizer of a half model in "
                "apex.contrib.optimizers.FP16_Optimizer, which gives it float32 masters."
            )

    def _count(self, param: Tensor) -> None:
        state = self.state[param]
        if len(state) == 0:
            state["step"] = 0
            for name in self._state_names:
                state[name] = torch.zeros_like(param, memory_format=torch.preserve_format)
        state["step"] = int(state["step"]) + 1

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor], divisor: Factor) -> None:
        states = [self.state[param] for param in params]
        moments, squares = [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states]
        true_grads = scaled([grad.to(param.dtype) for grad, param in zip(grads, params)], 1.0 / divisor)
        update_moments_(moments, squares, true_grads, group["betas"])
        roots = self._denominators(squares, group["eps"])
        step_along_(params, moments, roots, _corrected_rate(group, states[0]["step"]), group["weight_decay"])

    def _denominators(self, squares: list[Tensor], eps: float) -> list[Tensor]:
        if self.eps_mode == 0:
            return square_roots([square + eps for square in squares])
        roots = square_roots(squares)
        add_number_(roots, eps)
        return roots


def _divisor(group: Group, grads: list[Tensor], scale: Any, norm: Any) -> Factor:
    """What gradients are divided by: the loss scale, times what their norm is too large by."""
    largest = group["max_grad_norm"]
    if largest <= 0:
        return scale  # type: ignore[no-any-return]
    if norm is None:
        norm = norms([grad.float() for grad in grads]).norm()
    excess = torch.as_tensor((norm / scale + 1e-6) / largest, dtype=torch.float32, device=grads[0].device)
    return torch.where(excess > 1, excess, torch.ones_like(excess)) * float(scale)


def _corrected_rate(group: Group, step: int) -> float:
    rate: float = group["lr"]
    if group["bias_correction"]:
        beta1, beta2 = group["betas"]
        rate *= (1.0 - beta2**step) ** 0.5 / (1.0 - beta1**step)
    return rate


def _alike(triples: list[Any], state: Any) -> Iterator[list[Any]]:
    """Parameters of one device, dtype and step count together."""
    found: dict[Any, list[Any]] = {}
    for triple in triples:
        param = triple[0]
        found.setdefault((param.device, param.dtype, state[param]["step"]), []).append(triple)
    yield from found.values()
