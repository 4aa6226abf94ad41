"""Comparisons of recorded tensors' values, by torch, a piece at a time."""

from __future__ import annotations

from typing import Callable, Iterator

import torch

from .records import Inline, Storage, Tensor
from .torch_tensors import Loading, dtype_of, filled
from .values import half_of, read_bytes

#: elements in memory at a time
_PIECE = 1 << 20


def first_halves(tensor: Tensor, count: int, kind: str) -> tuple[float, ...]:
    """The first elements by index, rounded to float16 or bfloat16; numbers that are none compare as 0."""
    piece = next(_pieces(tensor, min(count, _PIECE)), torch.zeros(0))[:count]
    return tuple(0.0 if value != value else value for value in _rounded(piece, dtype_of(kind)).tolist())


def rounds_to(master: Tensor, weight: Tensor) -> bool:
    """Whether ``master`` rounded to half has the values of ``weight``, which is half, or was before it was saved."""
    half = dtype_of(half_of(weight))
    return _all_pieces(master, weight, lambda a, b: _equal(_rounded(a, half), b.float()))


def same_values(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same numbers at the same indices, whatever their dtypes."""
    return _all_pieces(one, other, lambda a, b: _equal(a.double(), b.double()))


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether all numbers are the same; what is no number equals what is none."""
    return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())


def _rounded(values: torch.Tensor, half: torch.dtype) -> torch.Tensor:
    return values.to(half).float()


def _all_pieces(one: Tensor, other: Tensor, same: Callable[[torch.Tensor, torch.Tensor], bool]) -> bool:
    if one.shape != other.shape:
        return False
    return all(same(a, b) for a, b in zip(_pieces(one, _PIECE), _pieces(other, _PIECE)))


def _pieces(tensor: Tensor, size: int) -> Iterator[torch.Tensor]:
    """The elements in the order of the indices, in tensors of one dimension."""
    if not tensor.is_contiguous or tensor.storage.big_endian or tensor.view_dtype:
        whole = Loading({}).tensor(tensor.detached()).reshape(-1)
        yield from (whole[start : start + size] for start in range(0, len(whole), size))
        return
    dtype = dtype_of(tensor.dtype)
    item = torch.empty(0, dtype=dtype).element_size()
    for start in range(0, tensor.numel, size):
        count = min(size, tensor.numel - start)
        data = read_bytes(tensor.storage, (tensor.offset + start) * item, count * item)
        yield filled(Storage(tensor.dtype, count, "cpu", Inline(data)))
