"""``Properties``: the options of one ``initialize``, checked as they are set, and the levels that preset them.

Source: apex/amp/frontend.py.
"""

from __future__ import annotations

from typing import Any

import torch

from ... import options
from ._amp_state import warn_or_err


class Properties:
    """Apex's option names as attributes. Setting one checks it against the level that is set.

    Raises:
        RuntimeError: for an option that makes no sense at this level.
        AssertionError, ValueError: for a value that can't be read.
    """

    options: dict[str, Any]

    def __init__(self) -> None:
        self.__dict__["options"] = {
            "enabled": False,
            "opt_level": None,
            "cast_model_type": None,
            "patch_torch_functions": False,
            "keep_batchnorm_fp32": None,
            "master_weights": None,
            "loss_scale": 1.0,
        }

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["options"][name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.options:
            self.options[name] = self._checked(name, value)
        else:
            self.__dict__[name] = value

    def _update_options_dict(self, new_options: dict[str, Any]) -> None:
        """Set several options without the checks between them."""
        unknown = sorted(set(new_options) - set(self.options))
        if unknown:
            raise ValueError(f"Tried to set unexpected option {unknown[0]}")
        self.options.update(new_options)

    def _checked(self, name: str, value: Any) -> Any:
        by_autocast = self.opt_level in ("O1", "O4")
        if name == "loss_scale":
            return options.parse_loss_scale(value)
        if name == "patch_torch_functions" and value and not by_autocast:
            warn_or_err("patch_torch_functions=True can't be set by itself; select opt_level='O1'.")
        if name == "keep_batchnorm_fp32":
            value = options.parse_optional_bool(value, name)
        if by_autocast and value is not None:
            self._check_at_o1(name, value)
        return value

    def _check_at_o1(self, name: str, value: Any) -> None:
        if name == "cast_model_type" and value is not False and value is not torch.float32:
            warn_or_err(
                "At opt_level O1 functions are cast and the model's weights stay float32. To cast the model, use "
                f"opt_level='O2' or 'O3'. cast_model_type was {value}."
            )
        elif name == "keep_batchnorm_fp32":
            warn_or_err(
                f"At opt_level O1 batchnorm runs in float32 anyway; leave keep_batchnorm_fp32 out (was {value})."
            )
        elif name == "master_weights":
            warn_or_err("master_weights makes no sense at opt_level O1: the model's weights are float32 themselves.")


class _Level:
    """One of ``O0`` … ``O3`` (``O4``, ``O5``): calling it presets the options."""

    def __init__(self, name: str) -> None:
        self._level = options.LEVELS[name]
        self.brief = f"{name}:  {self._level.brief}."
        self.more = self.brief

    def __call__(self, properties: Properties) -> Properties:
        level = self._level
        properties._update_options_dict(
            {
                "enabled": True,
                "opt_level": level.name,
                "cast_model_type": dtype_named(level.cast_model_type),
                "patch_torch_functions": level.patch_torch_functions,
                "keep_batchnorm_fp32": level.keep_batchnorm_fp32,
                "master_weights": level.master_weights,
                "loss_scale": level.loss_scale,
            }
        )
        return properties


def dtype_named(name: str | None) -> torch.dtype | None:
    """``torch.float16`` for "float16"; None for None."""
    return None if name is None else getattr(torch, name)


opt_levels: dict[str, _Level] = {name: _Level(name) for name in options.LEVELS}
