"""Functions of Apex that are torch's: clipping, and reading a number from a tensor."""

from __future__ import annotations

import libcst as cst

from .library_file import LibraryFile
from .library_outcomes import Converts, Make, Outcome, Stays, name_of, named
from .library_uses import Item

_CLIP = "torch.nn.utils.clip_grad_norm_"


def decide_fp16_clip(item: Item, file: LibraryFile) -> Outcome:
    """Decide about ``fp16_utils.clip_grad_norm``, which is torch's function itself."""
    return Converts(named(_CLIP, item.node))


def decide_contrib_clip(item: Item, file: LibraryFile) -> Outcome:
    """Decide about ``contrib.clip_grad.clip_grad_norm_``: the same signature and the same result."""
    if file.target.torch < (1, 9):
        return Stays(f"{name_of(item)} stays on the drop-in: before torch 1.9 torch's has no error_if_nonfinite")
    return Converts(named(_CLIP, item.node))


def decide_python_float(item: Item, file: LibraryFile) -> Outcome:
    """Decide about ``to_python_float(t)``: ``t.item()`` if ``t`` is a tensor, and that only ``.detach()`` shows."""
    call = item.call
    args = call.args if call is not None else ()
    if call is None or len(args) != 1 or args[0].star or args[0].keyword is not None or not _is_detached(args[0].value):
        return Stays(f"{name_of(item)} stays on the drop-in: it takes sequences as well as tensors")
    item_call = cst.Call(cst.Attribute(args[0].value, cst.Name("item")))
    return Converts(Make(call, lambda torch: (item_call,)))


def _is_detached(node: cst.BaseExpression) -> bool:
    is_call = isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and not node.lpar
    return is_call and not node.args and node.func.attr.value == "detach"  # type: ignore[attr-defined]
