"""``apex.reparameterization``: weight normalization by a hook before each forward.

Source: apex/reparameterization/__init__.py (removed in 2022).
"""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

from .reparameterization import Reparameterization
from .weight_norm import WeightNorm

__all__ = [
    "Reparameterization",
    "WeightNorm",
    "apply_reparameterization",
    "apply_weight_norm",
    "remove_reparameterization",
    "remove_weight_norm",
]

Module = TypeVar("Module", bound=nn.Module)


def apply_weight_norm(module: Module, name: str = "", dim: int | None = 0, hook_child: bool = True) -> Module:
    """Replace ``weight`` by ``weight_g`` (length) and ``weight_v`` (direction); returns ``module``.

    Args:
        module: whose parameters are replaced.
        name: the parameter, with dots to reach those of children; "" for all with two dimensions or more, except
            those of embeddings.
        dim: the dimension whose slices have a length each; None for one length in all.
        hook_child: put the hook on the module that has the parameter, rather than on ``module``.
    """
    return apply_reparameterization(module, reparameterization=WeightNorm, hook_child=hook_child, name=name, dim=dim)


def remove_weight_norm(module: Module, name: str = "", remove_all: bool = False) -> Module:
    """Make the normalized weights plain parameters again: ``name``, or all of them. Returns ``module``.

    Raises:
        ValueError: if ``name`` isn't normalized.
    """
    return remove_reparameterization(module, reparameterization=WeightNorm, name=name, remove_all=remove_all)


def apply_reparameterization(
    module: Module,
    reparameterization: type[Reparameterization] | None = None,
    name: str = "",
    dim: int | None = 0,
    hook_child: bool = True,
) -> Module:
    """:func:`apply_weight_norm` for any ``reparameterization``, a subclass of :class:`Reparameterization`."""
    assert reparameterization is not None, "apply_reparameterization needs a reparameterization, such as WeightNorm."
    for each in [name] if name else list(module.state_dict()):
        Reparameterization.apply(module, each, dim, reparameterization, hook_child)
    return module


def remove_reparameterization(
    module: Module,
    reparameterization: type[Any] = Reparameterization,
    name: str = "",
    remove_all: bool = False,
) -> Module:
    """:func:`remove_weight_norm` for any ``reparameterization``.

    ``name`` and ``remove_all`` look at hooks on ``module`` itself; with neither, its children's are removed too.

    Raises:
        ValueError: if ``name`` isn't reparameterized.
    """
    if not name and not remove_all:
        for each in list(module.modules()):
            remove_reparameterization(each, reparameterization=reparameterization, remove_all=True)
        return module
    hooks = [
        (key, hook)
        for key, hook in module._forward_pre_hooks.items()
        if isinstance(hook, reparameterization) and (remove_all or hook.name == name)
    ]
    if not hooks and not remove_all:
        raise ValueError(f"{name!r} of {module} isn't reparameterized: apply_weight_norm comes first.")
    for key, hook in hooks:
        hook.remove(module)
        del module._forward_pre_hooks[key]
    return module
