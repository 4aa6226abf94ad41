"""Tests for tensors that Apex kept for torch 0.3. Source: apex/amp/compat.py."""

from __future__ import annotations

from typing import Any, Iterable

import torch


def is_tensor_like(x: Any) -> bool:
    """Whether ``x`` is a tensor."""
    return isinstance(x, torch.Tensor)


def is_floating_point(x: Any) -> bool:
    """Whether ``x`` is a floating tensor."""
    return bool(x.is_floating_point())


def filter_attrs(module: Any, attrs: Iterable[str]) -> list[str]:
    """Those names that ``module`` has."""
    return [name for name in attrs if hasattr(module, name)]
