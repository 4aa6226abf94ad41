"""Arithmetic on lists of tensors: one call of ``torch._foreach_*`` per operation, tensor by tensor below torch 1.9.

A factor is a number or a 0-dim tensor on the device; nothing here reads a tensor back to the host. All functions whose
name ends in ``_`` change their first list in place. Lists are never empty.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Sequence, Union

import torch
from torch import Tensor

Factor = Union[float, Tensor]

HALF_TYPES = (torch.float16, torch.bfloat16)


def _foreach(name: str) -> Callable[..., Any] | None:
    return getattr(torch, "_foreach_" + name, None)


@functools.lru_cache(maxsize=None)
def _takes_a_tensor(name: str) -> bool:
    """Whether the list operation takes one 0-dim tensor for all; before torch 2.1 it would read it back."""
    overloads = getattr(getattr(torch.ops.aten, "_foreach_" + name), "overloads", None)  # torch 1.11
    return overloads is not None and "Tensor" in overloads()


def _on_device_of(tensors: Sequence[Tensor], factor: Tensor) -> Tensor:
    return factor.reshape(()).to(tensors[0].device)


def scale_(tensors: list[Tensor], factor: Factor) -> None:
    """``t *= factor``."""
    operation = _foreach("mul_")
    if isinstance(factor, Tensor):
        factor = _on_device_of(tensors, factor)
    if operation is None:
        for tensor in tensors:
            tensor.mul_(factor)
    elif isinstance(factor, Tensor) and not _takes_a_tensor("mul_"):
        operation(tensors, [factor] * len(tensors))
    else:
        operation(tensors, factor)


def scaled(tensors: list[Tensor], factor: Factor) -> list[Tensor]:
    """``t * factor``, in new tensors."""
    operation = _foreach("mul")
    if isinstance(factor, Tensor):
        factor = _on_device_of(tensors, factor)
    if operation is None:
        return [tensor.mul(factor) for tensor in tensors]
    if isinstance(factor, Tensor) and not _takes_a_tensor("mul_"):
        return list(operation(tensors, [factor] * len(tensors)))
    return list(operation(tensors, factor))


def add_(tensors: list[Tensor], others: list[Tensor], alpha: Factor = 1.0) -> None:
    """``t += alpha * other``."""
    operation = _foreach("add_")
    if isinstance(alpha, Tensor):
        others, alpha = scaled(others, alpha), 1.0
    if operation is not None:
        operation(tensors, others, alpha=alpha)
        return
    for tensor, other in zip(tensors, others):
        tensor.add_(other, alpha=alpha)


def added(tensors: list[Tensor], others: list[Tensor], alpha: float) -> list[Tensor]:
    """``t + alpha * other``, in new tensors."""
    operation = _foreach("add")
    if operation is None:
        return [tensor.add(other, alpha=alpha) for tensor, other in zip(tensors, others)]
    return list(operation(tensors, others, alpha=alpha))


def add_number_(tensors: list[Tensor], number: Factor) -> None:
    """``t += number``."""
    operation = _foreach("add_")
    if isinstance(number, Tensor):
        number = _on_device_of(tensors, number)
    if operation is not None and not isinstance(number, Tensor):
        operation(tensors, number)
        return
    if operation is not None:
        # without alpha a 0-dim tensor is read back and taken for a number
        operation(tensors, number if _takes_a_tensor("add_") else [number] * len(tensors), alpha=1.0)
        return
    for tensor in tensors:
        tensor.add_(number)


def add_product_(tensors: list[Tensor], ones: list[Tensor], others: list[Tensor], value: Factor) -> None:
    """``t += value * one * other``; ``others`` may be 0-dim tensors."""
    if isinstance(value, Tensor):
        ones, value = scaled(ones, value), 1.0
    operation = _foreach("addcmul_")
    if operation is not None:
        operation(tensors, ones, others, value)
        return
    for tensor, one, other in zip(tensors, ones, others):
        tensor.addcmul_(one, other, value=value)


def add_quotient_(tensors: list[Tensor], ones: list[Tensor], others: list[Tensor], value: Factor) -> None:
    """``t += value * one / other``; ``others`` may be 0-dim tensors."""
    if isinstance(value, Tensor):
        ones, value = scaled(ones, value), 1.0
    operation = _foreach("addcdiv_")
    if operation is not None:
        operation(tensors, ones, others, value)
        return
    for tensor, one, other in zip(tensors, ones, others):
        tensor.addcdiv_(one, other, value=value)


def quotients(tensors: list[Tensor], others: list[Tensor]) -> list[Tensor]:
    """``t / other``, in new tensors; ``others`` may be 0-dim tensors."""
    operation = _foreach("div")
    if operation is None:
        return [tensor / other for tensor, other in zip(tensors, others)]
    return list(operation(tensors, others))


def square_roots(tensors: list[Tensor]) -> list[Tensor]:
    """``t ** 0.5``, in new tensors."""
    operation = _foreach("sqrt")
    return [tensor.sqrt() for tensor in tensors] if operation is None else list(operation(tensors))


def zero_(tensors: list[Tensor]) -> None:
    """``t = 0``."""
    operation = _foreach("zero_")
    if operation is not None:
        operation(tensors)
        return
    for tensor in tensors:
        tensor.zero_()


def norms(tensors: list[Tensor], order: float = 2.0) -> Tensor:
    """The norm of each tensor (``order`` 2 or infinity), in one 1-dim tensor."""
    operation = _foreach("norm")
    if operation is not None:
        return torch.stack(list(operation(tensors, order)))
    return torch.stack([tensor.norm(order) for tensor in tensors])


def step_along_(
    params: list[Tensor], tops: list[Tensor], bottoms: list[Tensor], rate: Factor, decay: Factor = 0.0
) -> None:
    """``p -= rate * (top / bottom + decay * p)``.

    The decay joins the rest before ``p`` is touched: alone it is often too small to change the last bit.
    """
    if not isinstance(decay, Tensor) and decay == 0:
        add_quotient_(params, tops, bottoms, -rate)
        return
    update = quotients(tops, bottoms)
    add_(update, params, decay)
    add_(params, update, -rate)


def in_float32(tensors: list[Tensor]) -> list[Tensor]:
    """Half tensors as float32 copies, others themselves."""
    if any(tensor.dtype in HALF_TYPES for tensor in tensors):
        return [tensor.float() if tensor.dtype in HALF_TYPES else tensor for tensor in tensors]
    return tensors
