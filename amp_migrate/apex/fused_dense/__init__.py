"""``apex.fused_dense`` in plain torch."""

from .fused_dense import (
    DenseNoBiasFunc,
    FusedDense,
    FusedDenseFunc,
    FusedDenseGeluDense,
    FusedDenseGeluDenseFunc,
    _dense_no_bias,
    _fused_dense,
    _fused_dense_gelu_dense,
)

__all__ = [
    "DenseNoBiasFunc",
    "FusedDense",
    "FusedDenseFunc",
    "FusedDenseGeluDense",
    "FusedDenseGeluDenseFunc",
    "_dense_no_bias",
    "_fused_dense",
    "_fused_dense_gelu_dense",
]
