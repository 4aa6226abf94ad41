"""``apex.contrib.layer_norm`` in plain torch."""

from .layer_norm import FastLayerNorm

__all__ = ["FastLayerNorm"]
