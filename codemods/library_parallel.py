"""``apex.parallel`` as ``torch.nn.parallel`` and ``torch.nn.SyncBatchNorm``."""

from __future__ import annotations

from typing import Sequence

import libcst as cst

from .findings import Level
from .library_calls import Drop, Ignore, Keep, Signature, argument, literal
from .library_file import LibraryFile
from .library_outcomes import (
    Converts,
    Make,
    Outcome,
    Stays,
    TypeCheck,
    handed_on,
    inherited,
    keeps,
    name_of,
    named,
    names_also,
    translate_call,
    type_check,
)
from .library_uses import Item, bound_otherwise

DDP = "torch.nn.parallel.DistributedDataParallel"
_DDP_NAMES = (DDP, "torch.nn.parallel.distributed.DistributedDataParallel")
SYNC_BN = "torch.nn.SyncBatchNorm"
_SYNC_BN_NAMES = (SYNC_BN, "torch.nn.modules.batchnorm.SyncBatchNorm", "torch.nn.modules.SyncBatchNorm")

_COMPUTED_DELAY = "whether delay_allreduce is True can't be seen, and torch wants a bool"
_ADDS_UP = "torch adds gradients up in another way without a communication hook"
_DDP_SIGNATURE: Signature = (
    Keep("module", 0),
    Ignore("message_size"),
    Drop("delay_allreduce", (True, False), _COMPUTED_DELAY),
    Drop("shared_param", (None,), "Apex refuses shared_param"),
    Ignore("allreduce_trigger_params"),
    Drop("retain_allreduce_buffers", (False,), "torch doesn't keep the buffers it adds up in"),
    Drop("allreduce_always_fp32", (False,), f"allreduce_always_fp32: {_ADDS_UP}"),
    Ignore("num_allreduce_streams"),
    Ignore("allreduce_communicators"),
    Drop("gradient_average", (True,), f"gradient_average: {_ADDS_UP}"),
    Drop("gradient_predivide_factor", (1, 1.0), f"gradient_predivide_factor: {_ADDS_UP}"),
    Ignore("gradient_average_split_factor"),
    Ignore("prof"),
)

#: what only Apex's class has; who asks for it needs Apex's class
_DDP_ATTRIBUTES = (
    "disable_allreduce",
    "enable_allreduce",
    "_disable_allreduce",
    "needs_refresh",
    "allreduce_buffers",
    "allreduce_maybe_retain",
    "allreduce_bucket",
    "bucket_pgs",
    "bucket_streams",
)
_ELSEWHERE = "what asks for Apex's class in another file, other than by isinstance, has to ask for torch's"
_CHECK = "the check names torch's class, since the model may be made of that"


def decide_ddp(item: Item, file: LibraryFile) -> Outcome:
    """Decide about a use of ``apex.parallel.DistributedDataParallel``."""
    check = type_check(item, file)
    if check is not None:
        return _checked(item, check, file, _DDP_NAMES)
    call = item.call
    if call is None:
        return inherited(item, file) or handed_on(item)
    asks = file.attribute(*_DDP_ATTRIBUTES)
    if asks is not None:
        return Stays(f"{name_of(item)} stays on the drop-in: the file asks it for what torch's lacks", because=asks)
    if file.target.torch < (2, 1):
        return Stays(f"{name_of(item)} stays on the drop-in: before torch 2.1 torch's own copies buffers at the start")
    delay = argument(call, "delay_allreduce", 2)
    tolerates = delay is not None and literal(delay.value) is True
    added = [("find_unused_parameters", "True")] if tolerates else []
    edit = translate_call(item, call, DDP, _DDP_SIGNATURE, [*added, ("broadcast_buffers", "False")])
    if isinstance(edit, Stays):
        return edit
    if tolerates:
        note = f"torch's DistributedDataParallel refuses a model of which nothing is trained; {_ELSEWHERE}"
        return Converts(edit, Level.REVIEW, note)
    note = f"torch's DistributedDataParallel raises if a parameter gets no gradient; {_ELSEWHERE}"
    return Converts(edit, Level.REVIEW, note, "pass find_unused_parameters=True if parameters can stay unused")


def _checked(item: Item, check: TypeCheck, file: LibraryFile, names: Sequence[str]) -> Outcome:
    """What becomes of an isinstance: right whichever class the model is made of, since another file may make it."""
    checks = [type_check(each, file) for each in file.items if each.path == item.path]
    calls = [each.call for each in checks if each is not None]
    others = [use for use in file.uses_meaning(*names) if not any(_stands_in(use.node, call, file) for call in calls)]
    if others:
        return Stays(
            f"{name_of(item)} stays on the drop-in: the file tells it from torch's class",
            "if both are torch's in the end, name torch's only",
            others[0].node,
            holds=True,
        )
    if names is _DDP_NAMES and bound_otherwise(item, file.names) is None:  # of which the drop-in's is a subclass
        return Converts(named(names[0], item.node), Level.REVIEW, _CHECK, stands_alone=True)
    if names_also(check, file, item, *names):
        return None
    either = Make(item.node, lambda torch: [_either(item, torch.expression(names[0]))])
    return Converts(either, Level.REVIEW, _CHECK, is_done=False, stands_alone=True)


def _either(item: Item, other: cst.BaseExpression) -> cst.Tuple:
    """Both classes; inside a tuple it is one more tuple, which isinstance takes."""
    assert isinstance(item.node, cst.BaseExpression)
    return cst.Tuple([cst.Element(item.node), cst.Element(other)])


def _stands_in(node: cst.CSTNode, call: cst.Call, file: LibraryFile) -> bool:
    around: cst.CSTNode | None = node
    while around is not None and around is not call:
        around = file.parent(around)
    return around is call


_CHANNELS = "torch's SyncBatchNorm takes channels in the second place only"
_CONVERT: Signature = (Keep("module", 0), Keep("process_group", 1), Drop("channel_last", (False,), _CHANNELS))
_SYNC_BN: Signature = (
    *keeps("num_features", "eps", "momentum", "affine", "track_running_stats", "process_group"),
    Drop("channel_last", (False,), _CHANNELS),
    Drop("fuse_relu", (False,), "torch's SyncBatchNorm has no fuse_relu"),
)


def _cannot_sync(item: Item, file: LibraryFile) -> Stays | None:
    if file.target.device_type == "cuda" and file.target.torch >= (2, 0):
        return None
    return Stays(
        f"{name_of(item)} stays on the drop-in: torch's SyncBatchNorm needs a GPU, and before torch 2.0 "
        "several processes as well"
    )


def decide_convert_syncbn(item: Item, file: LibraryFile) -> Outcome:
    """Decide about a use of ``apex.parallel.convert_syncbn_model``."""
    if item.call is None:
        return handed_on(item)
    no = _cannot_sync(item, file)
    if no is not None:
        return no
    edit = translate_call(item, item.call, f"{SYNC_BN}.convert_sync_batchnorm", _CONVERT)
    if isinstance(edit, Stays):
        return edit
    note = "without running statistics torch's layers don't synchronise in evaluation, as Apex's did"
    return Converts(edit, Level.REVIEW, f"{note}; {_ELSEWHERE}")


def decide_sync_batchnorm(item: Item, file: LibraryFile) -> Outcome:
    """Decide about a use of the class ``apex.parallel.SyncBatchNorm``."""
    check = type_check(item, file)
    if check is not None:
        return _checked(item, check, file, _SYNC_BN_NAMES)
    if item.call is None:
        return inherited(item, file) or handed_on(item)
    no = _cannot_sync(item, file)
    if no is not None:
        return no
    edit = translate_call(item, item.call, SYNC_BN, _SYNC_BN)
    if isinstance(edit, Stays):
        return edit
    note = "torch.nn.SyncBatchNorm takes one input, Apex's also a second one to add to the result"
    return Converts(edit, Level.REVIEW, note)


def decide_process_group(item: Item, file: LibraryFile) -> Outcome:
    """Decide about ``create_syncbn_process_group``: of size 0 it is None."""
    if item.call is not None and len(item.call.args) == 1:
        size, call = argument(item.call, "group_size", 0), item.call
        if size is not None and literal(size.value) == 0:
            return Converts(Make(call, lambda torch: (cst.Name("None"),)))
    return Stays(f"{name_of(item)} stays on the drop-in: torch has no one function that makes these groups")


def decide_reduce_op(item: Item, file: LibraryFile) -> Outcome:
    """Decide about ``apex.parallel.ReduceOp``, which is torch's."""
    return Converts(named("torch.distributed.ReduceOp" + item.path[len("parallel.ReduceOp") :], item.node))
