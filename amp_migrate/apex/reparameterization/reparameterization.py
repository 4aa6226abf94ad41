"""The interface of a reparameterization: parameters from which a hook computes a weight before each forward.

Source: apex/reparameterization/reparameterization.py. Apex kept the weight until the next backward; here every forward
computes it, so that it is never stale (after ``load_state_dict``, or a step between two forwards).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

_KEPT = (nn.Embedding, nn.EmbeddingBag)


class Reparameterization:
    """Computes the weight ``name`` of ``module`` from other parameters; itself the hook that does.

    Args:
        name: the parameter, with dots to reach those of children.
        dim: passed on to :meth:`reparameterize`.
        module: the module that the hook is on.
        retain_forward: kept, without effect.
    """

    def __init__(self, name: str, dim: int | None, module: nn.Module, retain_forward: bool = True) -> None:
        self.name = name
        self.dim = dim
        self.retain_forward = retain_forward
        self.reparameterization_names: list[str] = []
        self.module = module

    def compute_weight(self, module: nn.Module | None = None, name: str | None = None) -> Tensor:
        """Return the weight ``name`` of ``module``. For subclasses."""
        raise NotImplementedError("A reparameterization needs a method compute_weight; see WeightNorm.")

    def reparameterize(self, name: str, weight: Tensor, dim: int | None) -> tuple[list[str], list[nn.Parameter]]:
        """Return the names of the parameters that stand for ``weight``, and these. For subclasses."""
        raise NotImplementedError("A reparameterization needs a method reparameterize; see WeightNorm.")

    @staticmethod
    def apply(
        module: nn.Module,
        name: str,
        dim: int | None,
        reparameterization: type[Reparameterization] | None = None,
        hook_child: bool = True,
    ) -> Reparameterization | None:
        """Replace the parameter ``name`` of ``module``; returns the hook, or None if it isn't one to replace."""
        owner, own_name = Reparameterization.get_module_and_name(module, name)
        if owner is None or own_name is None or isinstance(owner, _KEPT):
            return None
        weight = owner._parameters.get(own_name)
        if weight is None or weight.dim() <= 1:
            return None
        kind = reparameterization or Reparameterization
        hook_module = owner if hook_child else module
        hook = kind(own_name if hook_child else name, dim, hook_module)
        names, params = hook.reparameterize(own_name, weight, dim)
        del owner._parameters[own_name]
        for each, param in zip(names, params):
            owner.register_parameter(each, param)
        hook.reparameterization_names = names
        setattr(owner, own_name, None)  # until the first forward, so that the module can be copied
        hook_module.register_forward_pre_hook(hook)
        return hook

    @staticmethod
    def get_module_and_name(module: nn.Module, name: str) -> tuple[Any, str | None]:
        """The module that has the parameter with the dotted ``name``, and its name there."""
        if not name:
            return None, None
        *path, own_name = name.split(".")
        owner: Any = module
        for part in path:
            owner = getattr(owner, part)
        return owner, own_name

    def get_params(self, module: nn.Module) -> list[nn.Parameter]:
        """The parameters that stand for the weight, in the module that has it."""
        return [getattr(module, name) for name in self.reparameterization_names]

    def remove(self, module: nn.Module) -> None:
        """Make the weight a parameter again. The hook itself stays: see ``remove_reparameterization``."""
        owner, own_name = Reparameterization.get_module_and_name(module, self.name)
        weight = self.compute_weight(owner, own_name).detach()
        for name in self.reparameterization_names:
            del owner._parameters[name]
        setattr(owner, own_name, nn.Parameter(weight))  # type: ignore[arg-type]

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        """Compute the weight and put it in its place."""
        owner, own_name = Reparameterization.get_module_and_name(module, self.name)
        setattr(owner, own_name, self.compute_weight(owner, own_name))  # type: ignore[arg-type]
