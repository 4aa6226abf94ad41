"""``FastLayerNorm``: layer normalization over the last dimension, of any size.

Source: apex/contrib/layer_norm/layer_norm.py and apex/contrib/csrc/layer_norm/ln_api.cpp.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import init

from ...normalization.fused_layer_norm import (
    FusedLayerNormAffineMixedDtypesFunction,
    mixed_dtype_fused_layer_norm_affine,
)


class FastLayerNormFN:
    """Apex's autograd function as programs call it."""

    @staticmethod
    def apply(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, memory_efficient: bool = False) -> Tensor:
        """Layer normalization of ``x`` (*, features) in the dtype of ``gamma``."""
        return FusedLayerNormAffineMixedDtypesFunction.apply(x, gamma, beta, tuple(gamma.shape), epsilon)


def _fast_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, memory_efficient: bool = False) -> Tensor:
    """Layer normalization of ``x``; returns the weight's dtype, or autocast's."""
    return mixed_dtype_fused_layer_norm_affine(x, weight, bias, tuple(weight.shape), epsilon)


class FastLayerNorm(nn.Module):
    """Layer normalization over the last dimension; its state dict is that of ``nn.LayerNorm``.

    Args:
        hidden_size: features.
        eps: added to the variance.
        memory_efficient: accepted, without effect.

    Shapes: (*, ``hidden_size``) to the same, in the weight's dtype, under autocast in autocast's.
    """

    def __init__(self, hidden_size: int, eps: float = 1e-5, memory_efficient: bool = False) -> None:
        super().__init__()
        self.epsilon = eps
        self.memory_efficient = memory_efficient
        self.weight = nn.Parameter(torch.empty(hidden_size))
        self.bias = nn.Parameter(torch.empty(hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weight to ones and the bias to zeros."""
        init.ones_(self.weight)
        init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return _fast_layer_norm(x, self.weight, self.bias, self.epsilon, self.memory_efficient)
