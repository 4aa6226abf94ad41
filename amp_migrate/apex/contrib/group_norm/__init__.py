"""``apex.contrib.group_norm`` in plain torch."""

from .group_norm import GroupNorm

__all__ = ["GroupNorm"]
