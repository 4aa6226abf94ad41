"""Cross entropy with label smoothing, a loss for each row, keeping the logits and one number per row for backward.

Source: apex/contrib/xentropy/softmax_xentropy.py and apex/contrib/csrc/xentropy/xentropy_kernel.cu.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class SoftmaxCrossEntropyLoss(torch.autograd.Function):
    """``apply(logits, labels, smoothing=0.0, padding_idx=0, half_to_float=False)``: the losses, none reduced.

    Args:
        logits: (rows, classes), floating point.
        labels: (rows), int64.
        smoothing: the share of the target that is spread evenly over all classes.
        padding_idx: rows with this label have no loss and no gradient. 0 unless you say otherwise.
        half_to_float: return float32 for float16 logits.

    Returns:
        (rows) in the logits' dtype, or float32.

    Raises:
        RuntimeError: for ``half_to_float`` with logits that aren't float16.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        smoothing: float = 0.0,
        padding_idx: int = 0,
        half_to_float: bool = False,
    ) -> Tensor:
        if half_to_float and logits.dtype != torch.float16:
            raise RuntimeError(f"half_to_float=True is for float16 logits, not {logits.dtype}: leave it False.")
        x = logits if logits.dtype == torch.float64 else logits.float()
        padding = labels == padding_idx
        target = labels.masked_fill(padding, 0).unsqueeze(-1)  # a padding label may be no class at all
        log_sum_exp = torch.logsumexp(x, -1)
        losses = log_sum_exp - (1.0 - smoothing) * x.gather(-1, target).squeeze(-1)
        if smoothing:
            losses = losses - smoothing * x.mean(-1)
        ctx.save_for_backward(logits, log_sum_exp, target, padding)
        ctx.smoothing = smoothing
        return losses.masked_fill(padding, 0).to(torch.float32 if half_to_float else logits.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> Any:
        logits, log_sum_exp, target, padding = ctx.saved_tensors
        grad = grad_loss.to(log_sum_exp.dtype).masked_fill(padding, 0).unsqueeze(-1)
        grad_logits = torch.exp(logits.to(log_sum_exp.dtype) - log_sum_exp.unsqueeze(-1))
        if ctx.smoothing:
            grad_logits -= ctx.smoothing / logits.size(-1)
        grad_logits.scatter_add_(-1, target, torch.full_like(grad, ctx.smoothing - 1.0))
        return grad_logits.mul_(grad).to(logits.dtype), None, None, None, None
