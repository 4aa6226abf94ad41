"""``apex.optimizers`` as ``torch.optim``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Sequence

import libcst as cst

from .findings import Level
from .library_calls import Drop, Keep, Signature, argument, literal
from .library_file import LibraryFile
from .library_outcomes import Converts, Outcome, Stays, handed_on, inherited, name_of, translate_call, type_check
from .library_uses import Item
from .tree import walk

#: words that say that parameters may be half: Apex's optimizers compute in float32 for those, torch's don't
_HALF = (
    "half",
    "float16",
    "bfloat16",
    "HalfTensor",
    "BFloat16Tensor",
    "FP16_Optimizer",
    "FP16Model",
    "network_to_half",
    "convert_network",
    "convert_module",
    "prep_param_lists",
    "allow_incoming_model_not_fp32",
    "hard_override",
)
#: what only Apex's objects have
_ATTRIBUTES = ("set_grad_none", "adam_w_mode", "most_recent_scale", "scale_set_by_backward", "adagrad_w_mode")
_OLD_STATE = "checkpoints have torch's layout now"
_CONVERT = "convert old ones with `python -m amp_migrate.convert`"

_ZEROES = "zero_grad has to zero gradients in place, which torch's does only if it's told at each call"
_ADAM: Signature = (
    Keep("params", 0),
    Keep("lr", 1),
    Drop("bias_correction", (True,), "torch's Adam has no form without bias correction"),
    Keep("betas", 2),
    Keep("eps", 3),
    Drop("adam_w_mode", (True, False, 1, 0), "whether it's Adam or AdamW can't be seen"),
    Keep("weight_decay", 4),
    Drop("amsgrad", (False,), "Apex refuses amsgrad"),
    Drop("set_grad_none", (True,), _ZEROES),
    Drop("capturable", (False,), "torch's capturable form keeps other state"),
    Drop("master_weights", (False,), "torch's Adam keeps no master weights"),
)
_SGD: Signature = (
    Keep("params", 0),
    Keep("lr", 1),
    Keep("momentum", 2),
    Keep("dampening", 3),
    Keep("weight_decay", 4),
    Keep("nesterov", 5),
    Drop("wd_after_momentum", (False,), "torch's SGD adds weight decay before the momentum only"),
    Drop("materialize_master_grads", (True, False), "whether master gradients are made can't be seen"),
    Drop("set_grad_none", (True, False), "whether zero_grad sets gradients to None can't be seen"),
)
_ADAGRAD: Signature = (
    Keep("params", 0),
    Keep("lr", 1),
    Keep("eps", 5),
    Keep("weight_decay", 3),
    Drop("set_grad_none", (True,), _ZEROES),
    Drop("adagrad_w_mode", (False, 0), "torch's Adagrad has no decoupled weight decay"),
)


@dataclass(frozen=True)
class _Native:
    """What a call becomes: the class, its signature, defaults to spell out, and what else it means."""

    dotted: str
    signature: Signature
    added: tuple[tuple[str, str], ...] = ()
    review: str = ""


_Choose = Callable[[cst.Call], _Native]


def decide_adam(item: Item, file: LibraryFile) -> Outcome:
    """Decide about a use of ``apex.optimizers.FusedAdam``."""
    return _decide(item, file, _adam)


def _adam(call: cst.Call) -> _Native:
    mode = argument(call, "adam_w_mode", 5)
    if mode is not None and not literal(mode.value):
        return _Native("torch.optim.Adam", _ADAM)
    return _Native("torch.optim.AdamW", _ADAM, (("weight_decay", "0.0"),))


def decide_sgd(item: Item, file: LibraryFile) -> Outcome:
    """Decide about a use of ``apex.optimizers.FusedSGD``."""
    return _decide(item, file, _sgd)


def _sgd(call: cst.Call) -> _Native:
    sets_none = argument(call, "set_grad_none", 8)
    if sets_none is not None and literal(sets_none.value) is True:
        return _Native("torch.optim.SGD", _SGD)
    return _Native(
        "torch.optim.SGD",
        _SGD,
        review="zero_grad() sets gradients to None, Apex's zeroed them: a parameter that gets no gradient stood still "
        "only without momentum and weight decay, and now always does",
    )


def decide_adagrad(item: Item, file: LibraryFile) -> Outcome:
    """Decide about a use of ``apex.optimizers.FusedAdagrad``."""
    return _decide(item, file, lambda call: _Native("torch.optim.Adagrad", _ADAGRAD, review=_EARLY_STATE))


_EARLY_STATE = "torch's Adagrad makes its state at once, so the model has to be on its device before"


def _decide(item: Item, file: LibraryFile, native: _Choose) -> Outcome:
    if type_check(item, file) is not None:
        return Stays(
            f"{name_of(item)} stays on the drop-in: its type is asked for, and torch's class may be another "
            "optimizer's as well",
            "drop the check, or name torch's class",
            holds=True,
        )
    call = item.call
    if call is None:
        return inherited(item, file) or handed_on(item)
    chosen = native(call)
    no = _why_not(item, call, file)
    if no is not None:
        return no
    edit = translate_call(item, call, chosen.dotted, chosen.signature, chosen.added)
    if isinstance(edit, Stays):
        return edit
    if chosen.review:
        return Converts(edit, Level.REVIEW, f"{chosen.review}; {_OLD_STATE}", _CONVERT)
    if not _parameters_are_float32(file):
        half = "with half parameters (O3, model.half()) torch's optimizer isn't as exact as Apex's"
        return Converts(edit, Level.REVIEW, f"{half}; {_OLD_STATE}", _CONVERT)
    return Converts(edit, Level.SAFE, _OLD_STATE, _CONVERT)


def _why_not(item: Item, call: cst.Call, file: LibraryFile) -> Stays | None:
    name = name_of(item)
    if file.target.torch < (2, 0):
        return Stays(f"{name} stays on the drop-in: before torch 2.0 zero_grad() doesn't set gradients to None")
    if item.path == "optimizers.FusedSGD" and argument(call, "lr", 1) is None:
        return Stays(
            f"{name} stays on the drop-in: without lr the groups have to give one, which newer torch doesn't ask"
        )
    half = file.word("O3") if "O3" in file.amp_levels else file.word(*_HALF)
    if half is not None:
        message = f"{name} stays on the drop-in: parameters may be half, for which Apex's computes in float32"
        return Stays(message, "replace it by hand if they aren't", half)
    asks = file.attribute(*_ATTRIBUTES)
    if asks is not None:
        return Stays(f"{name} stays on the drop-in: the file asks for what torch's class lacks", because=asks)
    group = _group_key(file)
    if group is not None:
        return Stays(
            f"{name} stays on the drop-in: the file uses what only Apex has in a parameter group", because=group
        )
    return None


def _parameters_are_float32(file: LibraryFile) -> bool:
    """Whether the file shows it: ``amp.initialize`` takes float32 models only, and O2 steps on float32 masters."""
    levels = file.amp_levels
    return bool(levels) and all(level in ("O0", "O1", "O2") for level in levels)


def _group_key(file: LibraryFile) -> cst.CSTNode | None:
    """Return a place that reads or gives what Apex keeps in a group and torch doesn't."""
    given = file.attribute("bias_correction")
    if given is not None or file.word("step") is None or file.word("param_groups") is None:
        return given
    nodes = list(walk(file.source.module))
    groups = {"param_groups"} | {name for node in nodes for name in _groups_of_loop(node)}
    return next((node for node in nodes if _is_step_of(node, groups)), None)


def _groups_of_loop(node: cst.CSTNode) -> Sequence[str]:
    """The names that a loop over ``param_groups`` binds."""
    if not isinstance(node, (cst.For, cst.CompFor)) or not _says(node.iter, {"param_groups"}):
        return ()
    return [each.value for each in walk(node.target) if isinstance(each, cst.Name)]


def _is_step_of(node: cst.CSTNode, groups: set[str]) -> bool:
    if not isinstance(node, cst.Subscript) or not isinstance(node.slice[0].slice, cst.Index):
        return False
    return literal(node.slice[0].slice.value) == "step" and _says(node.value, groups)


def _says(node: cst.CSTNode, words: set[str]) -> bool:
    return any(isinstance(each, cst.Name) and each.value in words for each in walk(node))
