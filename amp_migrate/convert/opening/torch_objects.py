"""What torch's own functions in a pickle build: tensors as records, and the rest as calls that are carried as they are.

Sources: torch/_utils.py (``_rebuild_*``), torch/_tensor.py (``__reduce_ex__``) of torch 1.6 to 2.13.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

from ..dtypes import ITEM_SIZES, PACKED, UNTYPED, byte_size, named_dtype
from ..errors import Damaged, Unsafe
from ..records import Call, Global, PickledObject, Storage, Tensor
from ..tree import short_repr

if TYPE_CHECKING:
    from .pickle_machine import Machine

#: dimensions of a tensor; torch's own loops end at 64
MAX_DIMENSIONS = 64
_MAX_ELEMENTS = 1 << 62


@dataclass(frozen=True, eq=False)
class StorageView:
    """A part of a storage that torch before 0.4 saved as a storage of its own (legacy files only)."""

    root: Storage
    offset: int
    numel: int


def _sizes(value: Any, what: str) -> tuple[int, ...]:
    if isinstance(value, Call) and str(value.function) == "torch.Size" and len(value.args) == 1:
        value = value.args[0]
    if not isinstance(value, (tuple, list)) or len(value) > MAX_DIMENSIONS:
        raise Damaged(f"a tensor's {what} is {short_repr(value)}")
    if not all(type(size) is int and 0 <= size < _MAX_ELEMENTS for size in value):
        raise Damaged(f"a tensor's {what} has something else than sizes in it")
    return tuple(value)


def _check_view(numel: int, offset: Any, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    """Raise Damaged unless all elements of a view lie in a storage of ``numel`` elements."""
    if type(offset) is not int or offset < 0:
        raise Damaged(f"a tensor begins at element {short_repr(offset)} of its storage")
    if len(shape) != len(stride):
        raise Damaged(f"a tensor has {len(shape)} sizes and {len(stride)} strides")
    if 0 in shape:
        return
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride))
    if last >= numel:
        raise Damaged(f"a tensor of shape {shape} reaches to element {last} of a storage that has {numel}")


def _tensor(args: tuple[Any, ...], requires_grad: Any, metadata: Any, view_dtype: str | None) -> Tensor:
    storage, offset, size, stride = args
    shape, strides = _sizes(size, "shape"), _sizes(stride, "stride")
    numel, start = -1, 0
    if isinstance(storage, StorageView):
        numel, start, storage = storage.numel, storage.offset, storage.root
    if not isinstance(storage, Storage):
        raise Damaged(f"a tensor is made of a {type(storage).__name__} instead of a storage")
    if view_dtype is not None:
        numel = byte_size(storage) // ITEM_SIZES[view_dtype]
    elif storage.dtype == UNTYPED:
        view_dtype = "uint8"  # as torch._utils._rebuild_tensor takes it
    if numel < 0:
        numel = storage.numel
    _check_view(numel * PACKED.get(view_dtype or storage.dtype, 1), offset, shape, strides)
    if type(requires_grad) is not bool:
        raise Damaged(f"a tensor's requires_grad is {short_repr(requires_grad)}")
    return Tensor(storage, start + offset, shape, strides, requires_grad, False, metadata or None, view_dtype)


def _with_hooks(machine: Machine, name: str, args: tuple[Any, ...]) -> PickledObject:
    """Backward hooks are functions; torch itself saves an empty OrderedDict since 0.4. What has some is foreign."""
    machine.has_strangers = True
    return PickledObject(Global("torch._utils", name), args)


def rebuild_tensor(machine: Machine, args: tuple[Any, ...]) -> Any:
    """``(storage, offset, size, stride)``, torch before 0.4."""
    return _tensor(args, False, None, None)


def rebuild_tensor_v2(machine: Machine, args: tuple[Any, ...]) -> Any:
    """``(storage, offset, size, stride, requires_grad, backward_hooks[, metadata])``."""
    *view, requires_grad, hooks = args[:6]
    if hooks:
        return _with_hooks(machine, "_rebuild_tensor_v2", args)
    (metadata,) = args[6:] or (None,)
    return _tensor(tuple(view), requires_grad, metadata, None)


def rebuild_tensor_v3(machine: Machine, args: tuple[Any, ...]) -> Any:
    """``(storage, offset, size, stride, requires_grad, backward_hooks, dtype[, metadata])``, torch 2.1 on."""
    *view, requires_grad, hooks, dtype = args[:7]
    if hooks:
        return _with_hooks(machine, "_rebuild_tensor_v3", args)
    name = named_dtype(dtype) if isinstance(dtype, Global) else None
    if name is None:
        raise Damaged(f"a tensor's dtype is {short_repr(dtype)}")
    (metadata,) = args[7:] or (None,)
    return _tensor(tuple(view), requires_grad, metadata, name)


def rebuild_parameter(machine: Machine, args: tuple[Any, ...]) -> Any:
    """``(data, requires_grad, backward_hooks)``."""
    data, requires_grad, hooks = args
    if hooks:
        return _with_hooks(machine, "_rebuild_parameter", args)
    if isinstance(data, Tensor) and type(requires_grad) is bool:
        return dataclasses.replace(data, requires_grad=requires_grad, parameter=True)
    return Call(Global("torch._utils", "_rebuild_parameter"), args)


def rebuild_quantized(machine: Machine, args: tuple[Any, ...]) -> Any:
    """``(storage, offset, size, stride, quantizer_params, requires_grad, backward_hooks)``."""
    storage, offset, size, stride, _, requires_grad, hooks = args
    if hooks:
        return _with_hooks(machine, "_rebuild_qtensor", args)
    _tensor((storage, offset, size, stride), requires_grad, None, None)
    return Call(Global("torch._utils", "_rebuild_qtensor"), args)


def rebuild_sparse(machine: Machine, args: tuple[Any, ...]) -> Any:
    """``(layout, data)``, under both of its names: ``_rebuild_sparse_csr_tensor`` is torch 1.9 to 1.12's."""
    layout, data = args
    if not isinstance(data, tuple) or len(data) not in (3, 4):
        raise Damaged("a sparse tensor has something else than indices, values and a size")
    return Call(Global("torch._utils", "_rebuild_sparse_tensor"), args)


def carried(function: str) -> Callable[[Machine, tuple[Any, ...]], Any]:
    """Return a builder for a torch function whose call is carried as it is."""
    module, _, name = function.rpartition(".")
    target = Global(module, name)
    return lambda machine, args: Call(target, args)


def load_storage_from_bytes(machine: Machine, args: tuple[Any, ...]) -> Any:
    """A storage that plain pickle saved: its one argument is a whole file of torch.save's (torch/storage.py)."""
    (data,) = args
    if machine.load_nested is None:
        raise Unsafe("a file inside of the file holds yet another one")
    if type(data) is not bytes:
        raise Damaged(f"a storage inside of a pickle is a {type(data).__name__} instead of bytes")
    return machine.load_nested(data, machine.limits)
