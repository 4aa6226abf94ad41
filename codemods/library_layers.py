"""``apex.normalization`` as torch's layers and functions."""

from __future__ import annotations

import libcst as cst

from .findings import Level
from .library_calls import Drop, Keep, Signature, argument
from .library_file import LibraryFile
from .library_outcomes import (
    Converts,
    Outcome,
    Stays,
    handed_on,
    inherited,
    name_of,
    names_also,
    translate_call,
    type_check,
)
from .library_uses import Item

_EFFICIENT = Drop("memory_efficient", (True, False), "whether it saves memory can't be seen, and torch's layer doesn't")
_LAYER: Signature = (Keep("normalized_shape", 0), Keep("eps", 1), Keep("elementwise_affine", 2), _EFFICIENT)
_AFFINE: Signature = (
    Keep("input", 0),
    Keep("weight", 2),
    Keep("bias", 3),
    Keep("normalized_shape", 1),
    Keep("eps", 4),
    _EFFICIENT,
)
_PLAIN: Signature = (Keep("input", 0), Keep("normalized_shape", 1), Keep("eps", 4), _EFFICIENT)
_DTYPE = "under CUDA's autocast it returns float32, Apex's returned the dtype of its input or of autocast"

#: class → torch's class, the names of that, defaults to spell out, and the torch that has it
_LAYERS = {
    "normalization.FusedLayerNorm": (
        "torch.nn.LayerNorm",
        ("torch.nn.LayerNorm", "torch.nn.modules.normalization.LayerNorm"),
        (),
        (1, 6),
    ),
    "normalization.FusedRMSNorm": (
        "torch.nn.RMSNorm",
        ("torch.nn.RMSNorm", "torch.nn.modules.normalization.RMSNorm"),
        (("eps", "1e-5"),),
        (2, 4),
    ),
}


def decide_layer(item: Item, file: LibraryFile) -> Outcome:
    """Decide about a use of FusedLayerNorm or FusedRMSNorm."""
    dotted, names, added, since = _LAYERS[item.path]
    check = type_check(item, file)
    if check is not None:
        if names_also(check, file, item, *names):
            return None
        message = (
            f"{name_of(item)} stays on the drop-in: its type is asked for, and the model may have torch's layers too"
        )
        return Stays(message, "drop the check, or name torch's class too", holds=True)
    if item.call is None:
        return inherited(item, file) or handed_on(item)
    if file.target.torch < since:
        return Stays(f"{name_of(item)} stays on the drop-in: torch has it from {since[0]}.{since[1]} on")
    edit = translate_call(item, item.call, dotted, _LAYER, added)
    if isinstance(edit, Stays):
        return edit
    return Converts(edit, Level.REVIEW, f"{_DTYPE}; a check in another file for Apex's class has to name torch's")


def decide_affine(item: Item, file: LibraryFile) -> Outcome:
    """Decide about a use of the function ``fused_layer_norm_affine``."""
    return _function(item, file, _AFFINE, 3)


def decide_plain(item: Item, file: LibraryFile) -> Outcome:
    """Decide about a use of the function ``fused_layer_norm``."""
    return _function(item, file, _PLAIN, 1)


def _function(item: Item, file: LibraryFile, signature: Signature, shape_at: int) -> Outcome:
    if item.call is None:
        return handed_on(item)
    shape = argument(item.call, "normalized_shape", shape_at)
    if shape is None or not isinstance(shape.value, (cst.Tuple, cst.List)):
        return Stays(f"{name_of(item)} stays on the drop-in: torch's takes no int as shape, and this one may be one")
    edit = translate_call(item, item.call, "torch.nn.functional.layer_norm", signature, [("eps", "1e-6")])
    return edit if isinstance(edit, Stays) else Converts(edit, Level.REVIEW, _DTYPE)
