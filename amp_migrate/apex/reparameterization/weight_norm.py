"""Weight normalization: a weight as its direction ``v`` times its length ``g``.

Source: apex/reparameterization/weight_norm.py; https://arxiv.org/abs/1602.07868.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .reparameterization import Reparameterization


def _dim(dim: int | None) -> int:
    """torch's number for "one length in all" is -1."""
    return -1 if dim is None else dim


class WeightNorm(Reparameterization):
    """``weight = weight_g * weight_v / |weight_v|``, with a length for each slice along ``dim`` (None: one in all)."""

    def compute_weight(self, module: nn.Module | None = None, name: str | None = None) -> Tensor:
        """Return the weight ``name`` of ``module``."""
        module, name = Reparameterization.get_module_and_name(module or self.module, name or self.name)
        v, g = getattr(module, f"{name}_v"), getattr(module, f"{name}_g")
        weight: Tensor = torch._weight_norm(v.contiguous(), g, _dim(self.dim))
        return weight

    def reparameterize(self, name: str, weight: Tensor, dim: int | None) -> tuple[list[str], list[nn.Parameter]]:
        """Return the names and the parameters of length and direction."""
        length = torch.norm_except_dim(weight.data, 2, _dim(dim))
        return [f"{name}_g", f"{name}_v"], [nn.Parameter(length), nn.Parameter(weight.data)]
