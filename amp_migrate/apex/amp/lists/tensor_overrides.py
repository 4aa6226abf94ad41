"""Methods of ``torch.Tensor`` that Apex's O1 cast. Source: apex/amp/lists/tensor_overrides.py."""

import torch

from . import torch_overrides

MODULE = torch.Tensor


def _methods(*names: str) -> "list[str]":
    return [name for name in names if hasattr(MODULE, name)]


FP16_FUNCS = _methods("__matmul__", *torch_overrides.FP16_FUNCS)

FP32_FUNCS = _methods("__ipow__", "__pow__", "__rpow__", "cpu", *torch_overrides.FP32_FUNCS)

CASTS = _methods(
    "__add__", "__div__", "__eq__", "__ge__", "__gt__", "__iadd__", "__idiv__", "__imul__", "__isub__", "__itruediv__",
    "__le__", "__lt__", "__mul__", "__ne__", "__radd__", "__rdiv__", "__rmul__", "__rsub__", "__rtruediv__", "__sub__",
    "__truediv__", *torch_overrides.CASTS,
)  # fmt: skip

SEQUENCE_CASTS = _methods(*torch_overrides.SEQUENCE_CASTS)

AS_IMPORTED = {"FP16_FUNCS": tuple(FP16_FUNCS), "FP32_FUNCS": tuple(FP32_FUNCS), "CASTS": tuple(CASTS)}
