"""Group normalization with an optional SiLU after it.

Source: apex/contrib/group_norm/group_norm.py. Input dtype and memory format are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn import init

__all__ = ["GroupNorm"]

_WITH_SILU = ("silu", "swish")


def torch_group_norm(x: Tensor, g: int, w: Tensor | None, b: Tensor | None, eps: float, act: str | None = "") -> Tensor:
    """Group normalization of ``x`` (batch, channels, *) in ``g`` groups, then SiLU if ``act`` is "silu" or "swish".

    Computed in the weight's dtype, returned in the input's.
    """
    y = F.group_norm(x if w is None else x.to(w.dtype), g, w, b, eps)
    if act in _WITH_SILU:
        y = y * torch.sigmoid(y) if not hasattr(F, "silu") else F.silu(y)
    return y.to(x.dtype)


def cuda_group_norm_nhwc_one_pass(
    x: Tensor, G: int, weight: Tensor, bias: Tensor, eps: float, act: str | None = None
) -> Tensor:
    """:func:`torch_group_norm`."""
    return torch_group_norm(x, G, weight, bias, eps, act)


cuda_group_norm_nhwc_two_pass = cuda_group_norm_nhwc_one_pass
cuda_group_norm_v2_nhwc = cuda_group_norm_nhwc_one_pass


class GroupNorm(nn.Module):
    """Group normalization and an activation; its state dict is that of ``nn.GroupNorm``.

    Args:
        num_groups: groups.
        num_channels: channels, a multiple of it.
        eps: added to the variance.
        affine: whether there are a weight and a bias.
        device, dtype: of these.
        act: "silu" or "swish" (the same), or None.

    Shapes: (batch, ``num_channels``, *) to the same, in the input's dtype and memory format.

    Raises:
        ValueError: if the channels can't be divided evenly.
    """

    __constants__ = ["num_groups", "num_channels", "eps", "affine", "act"]
    if TYPE_CHECKING:
        weight: Any
        bias: Any

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        act: str | None = None,
    ) -> None:
        super().__init__()
        if num_channels % num_groups != 0:
            raise ValueError(f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups}).")
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        self.act = act.lower() if act else act
        for name in ("weight", "bias"):
            fresh = nn.Parameter(torch.empty(num_channels, device=device, dtype=dtype)) if affine else None
            self.register_parameter(name, fresh)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weight to ones and the bias to zeros."""
        if self.affine:
            init.ones_(self.weight)
            init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        y = torch_group_norm(input, self.num_groups, self.weight, self.bias, self.eps, self.act)
        if input.dim() == 4 and input.is_contiguous(memory_format=torch.channels_last):
            return y.contiguous(memory_format=torch.channels_last)
        return y

    def extra_repr(self) -> str:
        act = f", act={self.act}" if self.act else ""
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}{act}"
