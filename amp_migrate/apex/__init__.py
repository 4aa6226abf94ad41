"""The drop-in for NVIDIA Apex: its module tree, name by name, on torch's native mixed precision."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from ._passthrough import pass_through_if_needed

#: the modules of Apex that this drop-in has
SUBMODULES = (
    "RNN", "amp", "contrib", "fp16_utils", "fused_dense", "mlp", "multi_tensor_apply", "normalization", "optimizers",
    "parallel", "pyprof", "reparameterization", "transformer",
)  # fmt: skip
#: those whose names import, and raise on use
NAME_ONLY = ("pyprof", "transformer")

__all__ = [*SUBMODULES, "DeprecatedFeatureWarning"]


class DeprecatedFeatureWarning(FutureWarning):
    """The category of Apex's own warnings, which programs filter by name. The drop-in gives none."""


def missing_name(name: str) -> str:
    """The sentence that says what to do about a name that the drop-in lacks."""
    return (
        f"The drop-in for apex has no {name!r}: this version serves {', '.join('apex.' + m for m in SUBMODULES)}. "
        "Install NVIDIA's Apex beside it for the rest, or use the torch equivalent."
    )


def __getattr__(name: str) -> Any:
    if name in SUBMODULES:
        return import_module(f"{__name__}.{name}")
    # `from apex import name` asks from inside the import system, and would bury an AttributeError's text.
    if sys._getframe(1).f_code.co_filename.startswith("<frozen importlib") and not name.startswith("_"):
        raise ImportError(missing_name(name))
    raise AttributeError(missing_name(name))


pass_through_if_needed(__name__)
