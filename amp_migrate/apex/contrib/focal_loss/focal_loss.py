"""Focal loss over anchors and classes, with label smoothing and padded classes.

Source: apex/contrib/focal_loss/focal_loss.py and apex/contrib/csrc/focal_loss/focal_loss_cuda_kernel.cu.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

#: the target of an anchor that counts for nothing; -1 is background: a negative for every class
_IGNORED = -2


class FocalLoss:
    """Apex's autograd function as programs call it."""

    @staticmethod
    def apply(
        cls_output: Tensor,
        cls_targets_at_level: Tensor,
        num_positives_sum: Tensor,
        num_real_classes: int,
        alpha: float,
        gamma: float,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """See :func:`focal_loss`."""
        logits = cls_output[..., :num_real_classes]
        logits = logits if logits.dtype == torch.float64 else logits.float()
        targets = cls_targets_at_level.unsqueeze(-1)
        is_positive = targets == torch.arange(num_real_classes, device=logits.device)
        positive = is_positive.to(logits.dtype)
        probability = torch.sigmoid(logits)
        # binary cross entropy against the label, moved half the smoothing towards the other
        label = positive * (1.0 - label_smoothing) + 0.5 * label_smoothing
        cross_entropy = F.softplus(-logits) + (1.0 - label) * logits
        distance = torch.where(is_positive, 1.0 - probability, probability)
        weight = torch.where(is_positive, torch.full_like(logits, alpha), torch.full_like(logits, 1.0 - alpha))
        loss = (weight * distance.pow(gamma) * cross_entropy).masked_fill(targets == _IGNORED, 0.0)
        return (loss.sum() / num_positives_sum.reshape(())).to(torch.float32)


def focal_loss(
    cls_output: Tensor,
    cls_targets_at_level: Tensor,
    num_positive_sum: Tensor,
    num_real_classes: int,
    alpha: float,
    gamma: float,
    label_smoothing: float = 0.0,
) -> Tensor:
    """The focal loss of all anchors, divided by the number of positive ones.

    Args:
        cls_output: logits (*, classes), floating point.
        cls_targets_at_level: the class of each anchor (*), int64; -1 for background, -2 for anchors to ignore.
        num_positive_sum: the divisor, one element, float32.
        num_real_classes: the classes from there on are padding.
        alpha, gamma: weight of positives, and how much easy anchors are weighted down.
        label_smoothing: how much labels are moved towards the middle, in all.

    Returns:
        0-dim, float32.
    """
    return FocalLoss.apply(
        cls_output, cls_targets_at_level, num_positive_sum, num_real_classes, alpha, gamma, label_smoothing
    )
