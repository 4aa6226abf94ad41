"""Apex's cast functions, under the name that Apex's module has. Source: apex/amp/utils.py."""

from __future__ import annotations

from typing import Any, Callable

import torch

from ._amp_state import _amp_state


def is_nested(x: Any) -> bool:
    """Whether ``x`` is a tuple or list."""
    return isinstance(x, (tuple, list))


def is_fp_tensor(x: Any) -> bool:
    """Whether ``x`` is a floating tensor, or a tuple or list of nothing else."""
    if is_nested(x):
        return all(is_fp_tensor(y) for y in x)
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def type_string(x: torch.Tensor) -> str:
    """ "HalfTensor", "FloatTensor" … for the tensor's dtype."""
    return x.type().split(".")[-1]


def cast_to(dtype: torch.dtype) -> Callable[..., Any]:
    """A function that casts floating tensors, also in tuples and lists, on the devices where casts are on."""

    def cast(x: Any, name: str = "", verbose: bool = False) -> Any:
        if is_nested(x):
            items = [cast(y) for y in x]
            return type(x)(*items) if hasattr(x, "_make") else type(x)(items)
        plan = _amp_state.ambient
        if x.dtype == dtype or (plan is not None and x.device.type not in plan.device_types):
            return x
        if verbose:
            print(f"{type_string(x)}->{dtype} ({name})")
        return x.to(dtype)

    return cast


maybe_half = cast_to(torch.float16)
maybe_float = cast_to(torch.float32)
maybe_bfloat16 = cast_to(torch.bfloat16)


def casted_args(
    cast_fn: Callable[[Any], Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """``args`` and ``kwargs`` with their floating tensors cast."""

    def cast(x: Any) -> Any:
        return cast_fn(x) if is_fp_tensor(x) else x

    return [cast(x) for x in args], {k: cast(v) for k, v in kwargs.items()}


def collect_fp_tensor_types(args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[str]:
    """The type names of all floating tensors among the arguments, also in tuples and lists."""
    types: set[str] = set()

    def collect(x: Any) -> None:
        if is_nested(x):
            for y in x:
                collect(y)
        elif is_fp_tensor(x):
            types.add(type_string(x))

    for x in (*args, *kwargs.values()):
        collect(x)
    return types
