"""Layer-wise adaptive rate control around any optimizer (https://arxiv.org/abs/1708.03888).

Source: apex/parallel/LARC.py.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor

#: torch keeps step and state_dict hooks in attributes that start so
_HOOK_REGISTRIES = "_optimizer_"


class LARC(torch.optim.Optimizer):
    """Scale each parameter's gradient by its adaptive rate, then let ``optimizer`` step.

    It has no state of its own: groups, state and state dict are the wrapped optimizer's, at all times. It is an
    ``Optimizer`` by type only, so that schedulers and ``amp.initialize`` take it as itself.

    Args:
        optimizer: the optimizer to wrap. Weight decay in its groups goes into the adaptive rate and the gradient.
        trust_coefficient: adaptive rate = trust_coefficient * |p| / (|grad| + weight_decay * |p| + eps).
        clip: True: the rate is ``min(adaptive rate, lr)``; False: ``adaptive rate * lr``.
        eps: keeps the quotient finite.

    Source: apex/parallel/LARC.py, where it isn't an Optimizer.
    """

    def __init__(self, optimizer: Any, trust_coefficient: float = 0.02, clip: bool = True, eps: float = 1e-8) -> None:
        # Optimizer.__init__ would make groups and state of our own
        self.optim = optimizer
        self.trust_coefficient = trust_coefficient
        self.eps = eps
        self.clip = clip

    def __getstate__(self) -> dict[str, Any]:
        """The wrapped optimizer's state, as in Apex, and what it takes to rebuild this one."""
        return {
            **self.optim.__getstate__(),
            "optim": self.optim,
            "trust_coefficient": self.trust_coefficient,
            "clip": self.clip,
            "eps": self.eps,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "optim" in state:
            for name in ("optim", "trust_coefficient", "clip", "eps"):
                setattr(self, name, state[name])
        elif "optim" in vars(self):
            self.optim.__setstate__(state)
        else:
            raise RuntimeError(
                "This pickle of a LARC optimizer was written by NVIDIA's Apex, which left out the wrapped optimizer. "
                "Build LARC(optimizer) anew and load a state_dict."
            )

    def __getattr__(self, name: str) -> Any:
        """Hooks registered here belong to the wrapped optimizer. Nothing else of it shows through: whoever saw that its
        kernel can skip a step (``_step_supports_amp_scaling``) would let this one change the gradients first."""
        if name.startswith(_HOOK_REGISTRIES) and "optim" in vars(self):
            return getattr(self.optim, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return repr(self.optim)

    @property
    def state(self) -> Any:
        """The wrapped optimizer's state per parameter."""
        return self.optim.state

    @state.setter
    def state(self, value: Any) -> None:
        self.optim.state = value

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The wrapped optimizer's default options; schedulers look here for momentum."""
        return self.optim.defaults  # type: ignore[no-any-return]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The wrapped optimizer's groups, live."""
        return self.optim.param_groups  # type: ignore[no-any-return]

    @param_groups.setter
    def param_groups(self, value: list[dict[str, Any]]) -> None:
        self.optim.param_groups = value

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's state dict."""
        return self.optim.state_dict()  # type: ignore[no-any-return]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of the wrapped optimizer."""
        self.optim.load_state_dict(state_dict)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """The wrapped optimizer's, with its arguments."""
        self.optim.zero_grad(*args, **kwargs)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the wrapped optimizer."""
        self.optim.add_param_group(param_group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Scale the gradients, then step the wrapped optimizer with weight decay off; put it back in any case.

        Args:
            closure: recomputes the loss and its gradients (not in Apex); called once, before scaling.

        Returns:
            The closure's loss, if there is one; else what the wrapped ``step()`` returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        decays: list[tuple[dict[str, Any], Any]] = []
        try:
            with torch.no_grad():
                for group in self.optim.param_groups:
                    decay = group.get("weight_decay", 0)
                    decays.append((group, decay))
                    group["weight_decay"] = 0
                    self._scale_gradients(group, decay)
            result = self.optim.step()
        finally:
            for group, decay in decays:
                group["weight_decay"] = decay
        return result if closure is None else loss

    def _scale_gradients(self, group: dict[str, Any], decay: Any) -> None:
        for param in group["params"]:
            if param.grad is not None:
                self._scale_gradient(param, param.grad, group["lr"], decay)

    def _scale_gradient(self, param: Tensor, grad: Tensor, lr: Any, decay: Any) -> None:
        """Add weight decay to ``grad`` and scale it, both in place. A zero norm leaves it alone: decided on the
        device, so that nothing waits for it."""
        param_norm, grad_norm = torch.norm(param.detach()), torch.norm(grad.detach())
        rate = self.trust_coefficient * param_norm / (grad_norm + param_norm * decay + self.eps)
        if self.clip:
            rate = (rate / lr).clamp(max=1)
        applies = (param_norm != 0) & (grad_norm != 0)
        if decay != 0:
            grad.add_(torch.where(applies, decay * param, param.new_zeros(())))
        grad.mul_(torch.where(applies, rate, torch.ones_like(rate)))
