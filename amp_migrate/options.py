"""What Apex's option strings mean as values: opt levels, loss scales, booleans written as text.

Pure data and pure functions, without torch, so that the drop-in and the codemods read the same table.
Source: apex/amp/frontend.py at cb65b8ed~1; O4 and O5 are ROCm's bfloat16 levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

LossScale = Union[float, str]

#: Apex's default bounds and starting point of a dynamic loss scale.
INITIAL_SCALE = 2.0**16
MAX_LOSS_SCALE = 2.0**24
GROWTH_INTERVAL = 2000


@dataclass(frozen=True)
class OptLevel:
    """The defaults that one opt level stands for. Types are names of torch dtypes, None where Apex has None."""

    name: str
    brief: str
    cast_model_type: str | None
    patch_torch_functions: bool
    keep_batchnorm_fp32: bool | None
    master_weights: bool | None
    loss_scale: LossScale
    compute_type: str = "float16"


LEVELS: dict[str, OptLevel] = {
    level.name: level
    for level in (
        OptLevel("O0", "float32 training", "float32", False, None, False, 1.0, compute_type="float32"),
        OptLevel("O1", "float32 weights, casts inside torch functions (autocast)", None, True, None, None, "dynamic"),
        OptLevel("O2", "float16 model, float32 batchnorm and master weights", "float16", False, True, True, "dynamic"),
        OptLevel("O3", "float16 training", "float16", False, False, False, 1.0),
        OptLevel(
            "O4", "float32 weights, bfloat16 casts inside torch functions", None, True, None, None, 1.0, "bfloat16"
        ),
        OptLevel("O5", "bfloat16 model, float32 batchnorm and masters", "bfloat16", False, True, True, 1.0, "bfloat16"),
    )
}

_BOOLEANS = {"True": True, "False": False}


def parse_level(value: object) -> OptLevel:
    """Return the level called ``value``.

    Raises:
        RuntimeError: for anything else, with a hint for "01" (zero) written in place of "O1" (Apex's own error type).
    """
    if isinstance(value, str) and value in LEVELS:
        return LEVELS[value]
    raise RuntimeError(
        f"Unexpected optimization level {value}. Options are 'O0', 'O1', 'O2', 'O3' (and 'O4', 'O5' for bfloat16). "
        "Note that the prefix O is the letter O, not the number zero."
    )


def parse_loss_scale(value: object) -> LossScale:
    """Return "dynamic" or a float for what Apex accepts as ``loss_scale``: 128.0, "128.0" or "dynamic".

    Raises:
        ValueError: if the text isn't a number.
        TypeError: if the value can't be a number at all.
    """
    if value == "dynamic":
        return "dynamic"
    try:
        return float(value)  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        raise type(error)(f"loss_scale must be 'dynamic', a number, or text that holds one, not {value!r}") from None


def parse_optional_bool(value: object, name: str) -> bool | None:
    """Return the boolean that ``value`` stands for: True, False, None, "True" or "False".

    Raises:
        AssertionError: for anything else (Apex's own error type).
    """
    if isinstance(value, str) and value in _BOOLEANS:
        return _BOOLEANS[value]
    if value is None or isinstance(value, bool):
        return value
    raise AssertionError(f"{name} must be a boolean, the string 'True' or 'False', or None, found {name}={value!r}")
