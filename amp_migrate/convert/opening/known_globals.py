"""The reviewed table: every class and function that a file may name without being refused, and why it does no harm.

Nothing here is imported by its name in the file, or called as the file likes: a builder is our own code, which makes
plain data or a record out of checked arguments. Whatever isn't here becomes a ``PickledObject`` or stays a ``Global``.
What becomes plain data only after the whole file is read stands in ``plain_data.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping

from .. import dtypes
from ..records import Global
from . import builtin_objects as builtin
from . import torch_objects as torch

if TYPE_CHECKING:
    from .pickle_machine import Machine

Builder = Callable[["Machine", "tuple[Any, ...]"], Any]

#: Python 2's names, and names that torch has moved, as they are called today
_MOVED_MODULES: Mapping[str, str] = {
    "__builtin__": "builtins",
    "copy_reg": "copyreg",
    "numpy.core.multiarray": "numpy._core.multiarray",
    "numpy.core.numeric": "numpy._core.numeric",
    "pathlib._local": "pathlib",
    "torch.tensor": "torch._tensor",
}

_RENAMED: Mapping[tuple[str, str], Global] = {("builtins", "xrange"): Global("builtins", "range")}

BUILDERS: Mapping[str, Builder] = {
    # containers and numbers: values without behaviour
    "collections.OrderedDict": builtin.ordered_dict,
    "collections.Counter": builtin.counter,
    "builtins.set": builtin.set_of,
    "builtins.frozenset": builtin.frozenset_of,
    "builtins.complex": builtin.complex_of,
    "builtins.bytes": builtin.bytes_of,
    "builtins.bytearray": builtin.bytearray_of,
    # bytes in protocol 2; only latin1, so no codec is looked up
    "_codecs.encode": builtin.encode,
    # pickle's own ways to write an instance: only says which class, which is looked at like any other
    "copyreg.__newobj__": builtin.new_object,
    "copyreg.__newobj_ex__": builtin.new_object_with_keywords,
    "copyreg._reconstructor": builtin.reconstructed,
    # tensors that are views of a storage: sizes are checked, nothing is allocated
    "torch._utils._rebuild_tensor": torch.rebuild_tensor,
    "torch._utils._rebuild_tensor_v2": torch.rebuild_tensor_v2,
    "torch._utils._rebuild_tensor_v3": torch.rebuild_tensor_v3,
    "torch._utils._rebuild_parameter": torch.rebuild_parameter,
    "torch._utils._rebuild_qtensor": torch.rebuild_quantized,
    "torch._utils._rebuild_sparse_tensor": torch.rebuild_sparse,
    "torch._utils._rebuild_sparse_csr_tensor": torch.rebuild_sparse,
    # calls that torch.load(weights_only=True) makes itself; what is in their arguments is looked at like anything else
    "torch._utils._rebuild_parameter_with_state": torch.carried("torch._utils._rebuild_parameter_with_state"),
    "torch._utils._rebuild_meta_tensor_no_storage": torch.carried("torch._utils._rebuild_meta_tensor_no_storage"),
    "torch._utils._rebuild_nested_tensor": torch.carried("torch._utils._rebuild_nested_tensor"),
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": torch.carried(
        "torch._utils._rebuild_device_tensor_from_cpu_tensor"
    ),
    "torch._tensor._rebuild_from_type_v2": torch.carried("torch._tensor._rebuild_from_type_v2"),
    "torch.serialization._get_layout": torch.carried("torch.serialization._get_layout"),
    "torch.Size": torch.carried("torch.Size"),
    "torch.device": torch.carried("torch.device"),
    # a torch file in bytes: read by this same machine
    "torch.storage._load_from_bytes": torch.load_storage_from_bytes,
}

#: classes and functions that may stand in a tree by themselves, because torch.load(weights_only=True) takes them as
#: values or as the first argument of a call above
CONSTANTS = frozenset(
    [
        *(f"torch.{name}" for name in dtypes.ITEM_SIZES if name != dtypes.UNTYPED),
        *(f"torch.{name}" for name in dtypes.QUANTIZATION_SCHEMES),
        # arguments of _rebuild_from_type_v2
        "torch.Tensor",
        "torch.nn.parameter.Parameter",
        *(f"torch._utils.{name}" for name in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3")),
        *(f"torch._utils.{name}" for name in ("_rebuild_parameter", "_rebuild_parameter_with_state")),
        *(f"torch._utils.{name}" for name in ("_rebuild_qtensor", "_rebuild_sparse_tensor")),
    ]
)


def is_known(name: Global) -> bool:
    """Whether nothing of this name can be left in a tree that has to be converted or refused."""
    return str(name) in BUILDERS or str(name) in CONSTANTS or dtypes.storage_dtype(name) is not None


def current_name(module: str, name: str) -> Global:
    """Return a global by the name that it has today."""
    module = _MOVED_MODULES.get(module, module)
    return _RENAMED.get((module, name)) or Global(module, name)
