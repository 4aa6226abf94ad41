"""``MLP``: linear layers with one activation after each of them, the last included.

Source: apex/mlp/mlp.py and csrc/mlp_cuda.cu.
"""

from __future__ import annotations

import math
from copy import copy
from typing import Any, Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._autocast_utils import _cast_if_autocast_enabled

#: Apex's numbers of the activations, by name
_NUMBERS = {"none": 0, "relu": 1, "sigmoid": 2}
_ACTIVATIONS: dict[int, Callable[[Tensor], Tensor]] = {0: lambda x: x, 1: torch.relu, 2: torch.sigmoid}


class MlpFunction:
    """Apex's autograd function as programs call it."""

    @staticmethod
    def apply(bias: int, activation: int, input: Tensor, *params: Tensor) -> Tensor:
        """Run the layers. ``params`` are all weights (out, in), then, if ``bias``, all biases (out)."""
        layers = len(params) // 2 if bias else len(params)
        activate = _ACTIVATIONS[activation]
        for layer in range(layers):
            input = activate(F.linear(input, params[layer], params[layers + layer] if bias else None))
        return input


def mlp_function(bias: int, activation: int, *args: Any) -> Tensor:
    """Run an MLP on ``args``: the input (batch, in), all weights, all biases; cast first under autocast."""
    return MlpFunction.apply(bias, activation, *_cast_if_autocast_enabled(*args))


class MLP(nn.Module):
    """Linear layers with an activation after each, the last included. Parameters: ``weight_0``, ``bias_0``, ...

    Args:
        mlp_sizes: features of the input and of each layer.
        bias: whether the layers have one.
        activation: "none", "relu" or "sigmoid".

    Raises:
        TypeError: for another activation.
    """

    def __init__(self, mlp_sizes: Sequence[int], bias: bool = True, activation: str = "relu") -> None:
        super().__init__()
        if activation not in _NUMBERS:
            raise TypeError(f"MLP has no activation {activation!r}: use one of {', '.join(map(repr, _NUMBERS))}.")
        self.num_layers = len(mlp_sizes) - 1
        self.mlp_sizes = copy(mlp_sizes)
        self.bias = 1 if bias else 0
        self.activation = _NUMBERS[activation]
        for i in range(self.num_layers):
            self.register_parameter(f"weight_{i}", nn.Parameter(torch.empty(mlp_sizes[i + 1], mlp_sizes[i])))
            if bias:
                self.register_parameter(f"bias_{i}", nn.Parameter(torch.empty(mlp_sizes[i + 1])))
        self.reset_parameters()

    @property
    def weights(self) -> list[nn.Parameter]:
        """The weights (out, in) in order. Looked up anew: copies and conversions replace parameters."""
        return [getattr(self, f"weight_{i}") for i in range(self.num_layers)]

    @property
    def biases(self) -> list[nn.Parameter]:
        """The biases (out) in order; none without bias."""
        return [getattr(self, f"bias_{i}") for i in range(self.num_layers)] if self.bias else []

    def reset_parameters(self) -> None:
        """Draw all weights, then all biases, from normal distributions."""
        for weight in self.weights:
            nn.init.normal_(weight, 0.0, math.sqrt(2.0 / float(weight.size(0) + weight.size(1))))
        for bias in self.biases:
            nn.init.normal_(bias, 0.0, math.sqrt(1.0 / float(bias.size(0))))

    def forward(self, input: Tensor) -> Tensor:
        return mlp_function(self.bias, self.activation, input, *self.weights, *self.biases)

    def extra_repr(self) -> str:
        return f"MLP sizes: {self.mlp_sizes}, Bias={self.bias}, activation={self.activation}"
