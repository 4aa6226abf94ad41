"""Linear layers, and linear - GELU - linear.

Source: apex/fused_dense/fused_dense.py and csrc/fused_dense_cuda.cu. Under autocast the arguments are cast first. The
GELU is the tanh form: cuBLASLt's epilogue, which Apex used, has no other.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._autocast_utils import _cast_if_autocast_enabled


def _gelu(x: Tensor) -> Tensor:
    """GELU in the tanh form. ``F.gelu`` has it from torch 1.12."""
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1.0 + torch.tanh(inner))


if "approximate" in (F.gelu.__doc__ or ""):

    def _gelu(x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")


class FusedDenseFunc:
    """Apex's autograd function as programs call it."""

    @staticmethod
    def apply(input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """``input`` (*, in) times ``weight`` (out, in), plus ``bias`` (out)."""
        return F.linear(input, weight, bias)


class DenseNoBiasFunc:
    """The same without bias."""

    @staticmethod
    def apply(input: Tensor, weight: Tensor) -> Tensor:
        """``input`` (*, in) times ``weight`` (out, in)."""
        return F.linear(input, weight)


class FusedDenseGeluDenseFunc:
    """The same for two layers with a GELU between them."""

    @staticmethod
    def apply(input: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor) -> Tensor:
        """``input`` (*, in) through ``weight1`` (mid, in), GELU and ``weight2`` (out, mid)."""
        return F.linear(_gelu(F.linear(input, weight1, bias1)), weight2, bias2)


def _fused_dense(input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return FusedDenseFunc.apply(*_cast_if_autocast_enabled(input, weight, bias))


def _dense_no_bias(input: Tensor, weight: Tensor) -> Tensor:
    return DenseNoBiasFunc.apply(*_cast_if_autocast_enabled(input, weight))


def _fused_dense_gelu_dense(input: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor) -> Tensor:
    return FusedDenseGeluDenseFunc.apply(*_cast_if_autocast_enabled(input, weight1, bias1, weight2, bias2))


def _blank(*size: int) -> nn.Parameter:
    # Apex left its parameters uninitialised. Zeros take nothing from the random stream either, and hold no nan.
    return nn.Parameter(torch.zeros(*size))


class FusedDense(nn.Module):
    """A linear layer; parameters ``weight`` (out, in) and ``bias`` (out). Initialise them: Apex doesn't.

    Args:
        in_features, out_features: sizes.
        bias: whether there is one.
    """

    if TYPE_CHECKING:
        bias: Any

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = _blank(out_features, in_features)
        self.register_parameter("bias", _blank(out_features) if bias else None)

    def forward(self, input: Tensor) -> Tensor:
        if self.bias is None:
            return _dense_no_bias(input, self.weight)
        return _fused_dense(input, self.weight, self.bias)


class FusedDenseGeluDense(nn.Module):
    """Linear, GELU (tanh form), linear; parameters ``weight1``, ``bias1``, ``weight2``, ``bias2``. Initialise them.

    Args:
        in_features, intermediate_features, out_features: sizes.
        bias: True.

    Raises:
        AssertionError: for ``bias=False``.
    """

    def __init__(self, in_features: int, intermediate_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        assert bias, "FusedDenseGeluDense has no form without bias: use nn.Linear(bias=False) and nn.GELU."
        self.in_features = in_features
        self.intermediate_features = intermediate_features
        self.out_features = out_features
        self.weight1 = _blank(intermediate_features, in_features)
        self.bias1 = _blank(intermediate_features)
        self.weight2 = _blank(out_features, intermediate_features)
        self.bias2 = _blank(out_features)

    def forward(self, input: Tensor) -> Tensor:
        return _fused_dense_gelu_dense(input, self.weight1, self.bias1, self.weight2, self.bias2)
