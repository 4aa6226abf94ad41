"""Layer and root-mean-square normalization with Apex's names, defaults and output dtypes.

Source: apex/normalization/fused_layer_norm.py. Under autocast the arguments are cast first, so that the output has
autocast's dtype (``nn.LayerNorm`` returns float32 on CUDA there). Without, the plain layers return the input's dtype
and the Mixed ones their weight's. ``memory_efficient`` is accepted and changes nothing.

``eps`` is 1e-5 in the modules and 1e-6 in the functions, as in Apex.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, List, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn import init

from .._autocast_utils import _cast_if_autocast_enabled
from ._kernels import Shape, as_shape, layer_norm, rms_dtype, rms_norm

_jit: Any = torch.jit  # torch's types hide is_scripting


def manual_rms_norm(input: Tensor, normalized_shape: List[int], weight: Optional[Tensor], eps: float) -> Tensor:  # noqa: UP006, UP045
    """Root-mean-square normalization by type promotion: the output is float32 unless the weight is half.

    Args:
        input: (*, ``normalized_shape``), floating point.
        normalized_shape: the last dimensions, a list of ints.
        weight: of ``normalized_shape``, or None.
        eps: added to the mean square.
    """
    dims = [-1 - i for i in range(len(normalized_shape))]
    mean_square = input.to(torch.float32).pow(2).mean(dims, keepdim=True)
    normalized = input * torch.rsqrt(mean_square + eps)
    if weight is None:
        return normalized
    if weight.dtype == torch.float16 or weight.dtype == torch.bfloat16:
        normalized = normalized.to(weight.dtype)
    return weight * normalized


def fused_layer_norm_affine(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """Layer normalization of ``input`` (*, ``normalized_shape``); returns its dtype, or autocast's."""
    input, weight, bias = _cast_if_autocast_enabled(input, weight, bias)
    return layer_norm(input, weight, bias, normalized_shape, eps, input.dtype)


def fused_layer_norm(
    input: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """:func:`fused_layer_norm_affine` without weight and bias."""
    (input,) = _cast_if_autocast_enabled(input)
    return layer_norm(input, None, None, normalized_shape, eps, input.dtype)


def mixed_dtype_fused_layer_norm_affine(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """Layer normalization of ``input`` (*, ``normalized_shape``); returns the weight's dtype, or autocast's."""
    input, weight, bias = _cast_if_autocast_enabled(input, weight, bias)
    return layer_norm(input, weight, bias, normalized_shape, eps, weight.dtype)


def fused_rms_norm_affine(
    input: Tensor, weight: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """RMS normalization of ``input`` (*, ``normalized_shape``); returns its dtype, or autocast's.

    A float32 input with a half weight, which Apex's kernel refuses, gives the weight's dtype.
    """
    input, weight = _cast_if_autocast_enabled(input, weight)
    return rms_norm(input, weight, normalized_shape, eps, rms_dtype(input, weight))


def fused_rms_norm(input: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False) -> Tensor:
    """:func:`fused_rms_norm_affine` without weight."""
    (input,) = _cast_if_autocast_enabled(input)
    return rms_norm(input, None, normalized_shape, eps, input.dtype)


def mixed_dtype_fused_rms_norm_affine(
    input: Tensor, weight: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """RMS normalization of ``input`` (*, ``normalized_shape``); returns the weight's dtype, or autocast's."""
    input, weight = _cast_if_autocast_enabled(input, weight)
    return rms_norm(input, weight, normalized_shape, eps, weight.dtype)


#: annotated here: torch.jit.script trips over annotations in the class
_WEIGHT_AND_BIAS: tuple[str, ...] = ("weight", "bias")


class _Norm(nn.Module):
    """What the layers share: shape, eps and the parameters, which start as ones (weight) and zeros (bias)."""

    __constants__ = ["normalized_shape", "eps", "elementwise_affine"]
    _parameter_names = _WEIGHT_AND_BIAS
    #: pickles from before 2023 lack it
    memory_efficient = False
    if TYPE_CHECKING:
        normalized_shape: Any
        weight: Any
        bias: Any

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__()
        self.normalized_shape = torch.Size(as_shape(normalized_shape))
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.memory_efficient = memory_efficient
        for name in self._parameter_names:
            fresh = nn.Parameter(torch.empty(*self.normalized_shape)) if elementwise_affine else None
            self.register_parameter(name, fresh)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weight to ones and the bias to zeros."""
        if self.elementwise_affine:
            for name, fill in zip(self._parameter_names, (init.ones_, init.zeros_)):
                fill(getattr(self, name))

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class FusedLayerNorm(_Norm):
    """Layer normalization over the last dimensions; its state dict is that of ``nn.LayerNorm``.

    Args:
        normalized_shape: the last dimensions of the input: an int, a list, a tuple or a ``torch.Size``.
        eps: added to the variance.
        elementwise_affine: whether there are a weight and a bias.
        memory_efficient: accepted, without effect.

    Shapes: input (*, ``normalized_shape``) to the same. The output has the input's dtype, under autocast autocast's.
    """

    def forward(self, input: Tensor) -> Tensor:
        if _jit.is_scripting():
            return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
        else:
            return self._normalize(input)

    @torch.jit.unused
    def _normalize(self, input: Tensor) -> Tensor:
        if not self.elementwise_affine:
            return fused_layer_norm(input, self.normalized_shape, self.eps)
        return fused_layer_norm_affine(input, self.weight, self.bias, self.normalized_shape, self.eps)


class FusedRMSNorm(_Norm):
    """Root-mean-square normalization over the last dimensions. Arguments and shapes: see :class:`FusedLayerNorm`."""

    _parameter_names = ("weight",)

    def forward(self, input: Tensor) -> Tensor:
        if _jit.is_scripting():
            return manual_rms_norm(input, self.normalized_shape, self.weight, self.eps)
        else:
            return self._normalize(input)

    @torch.jit.unused
    def _normalize(self, input: Tensor) -> Tensor:
        if not self.elementwise_affine:
            return fused_rms_norm(input, self.normalized_shape, self.eps)
        return fused_rms_norm_affine(input, self.weight, self.normalized_shape, self.eps)


def _refuse_without_affine(name: str, options: dict[str, Any]) -> None:
    """Apex's Mixed layers take any keyword, and mind only this one."""
    if "elementwise_affine" in options:
        warnings.warn(f"{name} ignores elementwise_affine: it always has parameters.", stacklevel=3)
        if not options["elementwise_affine"]:
            raise RuntimeError(
                f"{name} can't do without parameters (elementwise_affine=False): its output has their dtype. "
                f"Use {name[len('Mixed') :]}."
            )


class MixedFusedLayerNorm(FusedLayerNorm):
    """:class:`FusedLayerNorm` whose output has the weight's dtype.

    Raises:
        RuntimeError: for ``elementwise_affine=False``.
    """

    def __init__(
        self, normalized_shape: Shape, eps: float = 1e-5, *, memory_efficient: bool = False, **kwargs: Any
    ) -> None:
        _refuse_without_affine("MixedFusedLayerNorm", kwargs)
        super().__init__(normalized_shape, eps, True, memory_efficient)

    @torch.jit.unused
    def _normalize(self, input: Tensor) -> Tensor:
        return mixed_dtype_fused_layer_norm_affine(input, self.weight, self.bias, self.normalized_shape, self.eps)


class MixedFusedRMSNorm(FusedRMSNorm):
    """:class:`FusedRMSNorm` whose output has the weight's dtype.

    Raises:
        RuntimeError: for ``elementwise_affine=False``.
    """

    def __init__(
        self, normalized_shape: Shape, eps: float = 1e-5, *, memory_efficient: bool = False, **kwargs: Any
    ) -> None:
        _refuse_without_affine("MixedFusedRMSNorm", kwargs)
        super().__init__(normalized_shape, eps, True, memory_efficient)

    @torch.jit.unused
    def _normalize(self, input: Tensor) -> Tensor:
        return mixed_dtype_fused_rms_norm_affine(input, self.weight, self.normalized_shape, self.eps)


class FusedLayerNormAffineFunction:
    """Apex's autograd function as programs call it. Like any of them, it takes no part in autocast's casts."""

    @staticmethod
    def apply(
        input: Tensor, weight: Tensor, bias: Tensor, normalized_shape: Shape, eps: float, memory_efficient: bool = False
    ) -> Tensor:
        """Layer normalization in the input's dtype."""
        return layer_norm(input, weight, bias, normalized_shape, eps, input.dtype)


class FusedLayerNormAffineMixedDtypesFunction(FusedLayerNormAffineFunction):
    """The same for another weight dtype."""

    @staticmethod
    def apply(
        input: Tensor, weight: Tensor, bias: Tensor, normalized_shape: Shape, eps: float, memory_efficient: bool = False
    ) -> Tensor:
        """Layer normalization in the weight's dtype."""
        return layer_norm(input, weight, bias, normalized_shape, eps, weight.dtype)


class FusedLayerNormFunction:
    """The same without parameters."""

    @staticmethod
    def apply(input: Tensor, normalized_shape: Shape, eps: float, memory_efficient: bool = False) -> Tensor:
        """Layer normalization in the input's dtype."""
        return layer_norm(input, None, None, normalized_shape, eps, input.dtype)


class FusedRMSNormAffineFunction:
    """RMS normalization as programs call Apex's autograd function."""

    @staticmethod
    def apply(
        input: Tensor, weight: Tensor, normalized_shape: Shape, eps: float, memory_efficient: bool = False
    ) -> Tensor:
        """RMS normalization in the dtype of :func:`fused_rms_norm_affine`."""
        return rms_norm(input, weight, normalized_shape, eps, rms_dtype(input, weight))


class FusedRMSNormAffineMixedDtypesFunction(FusedRMSNormAffineFunction):
    """The same for another weight dtype."""

    @staticmethod
    def apply(
        input: Tensor, weight: Tensor, normalized_shape: Shape, eps: float, memory_efficient: bool = False
    ) -> Tensor:
        """RMS normalization in the weight's dtype."""
        return rms_norm(input, weight, normalized_shape, eps, weight.dtype)


class FusedRMSNormFunction:
    """The same without parameters."""

    @staticmethod
    def apply(input: Tensor, normalized_shape: Shape, eps: float, memory_efficient: bool = False) -> Tensor:
        """RMS normalization in the input's dtype."""
        return rms_norm(input, None, normalized_shape, eps, input.dtype)
