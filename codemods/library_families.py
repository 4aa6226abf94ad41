"""Which rule decides about which part of Apex: the table of the library rules, and of what torch has no equal for."""

from __future__ import annotations

from typing import Mapping

from . import library_casts as casts
from . import library_functions as functions
from . import library_layers as layers
from . import library_optimizers as optimizers
from . import library_parallel as parallel
from .library_file import LibraryFile
from .library_outcomes import Decide, Outcome, Stays, name_of
from .library_uses import Item

#: path below ``apex`` → the rule's code, and what decides about a use of it
FAMILIES: Mapping[str, tuple[str, Decide]] = {
    "parallel.DistributedDataParallel": ("AMP201", parallel.decide_ddp),
    "parallel.convert_syncbn_model": ("AMP202", parallel.decide_convert_syncbn),
    "parallel.SyncBatchNorm": ("AMP202", parallel.decide_sync_batchnorm),
    "parallel.create_syncbn_process_group": ("AMP202", parallel.decide_process_group),
    "parallel.ReduceOp": ("AMP202", parallel.decide_reduce_op),
    "optimizers.FusedAdam": ("AMP203", optimizers.decide_adam),
    "optimizers.FusedSGD": ("AMP203", optimizers.decide_sgd),
    "optimizers.FusedAdagrad": ("AMP203", optimizers.decide_adagrad),
    "normalization.FusedLayerNorm": ("AMP204", layers.decide_layer),
    "normalization.FusedRMSNorm": ("AMP204", layers.decide_layer),
    "normalization.fused_layer_norm.fused_layer_norm": ("AMP204", layers.decide_plain),
    "normalization.fused_layer_norm.fused_layer_norm_affine": ("AMP204", layers.decide_affine),
    "fp16_utils.clip_grad_norm": ("AMP205", functions.decide_fp16_clip),
    "fp16_utils.to_python_float": ("AMP205", functions.decide_python_float),
    "contrib.clip_grad.clip_grad_norm_": ("AMP206", functions.decide_contrib_clip),
    "amp.disable_casts": ("AMP207", casts.decide_disable_casts),
    **{f"amp.{name}_function": ("AMP207", casts.decide_decorator) for name in ("float", "half", "bfloat16", "promote")},
    **{
        f"amp.register_{name}_function": ("AMP207", casts.decide_register)
        for name in ("float", "half", "bfloat16", "promote")
    },
}

#: names of one group stay together, where one of them can't be told from torch's
TOGETHER: Mapping[str, str] = {"parallel.convert_syncbn_model": "parallel.SyncBatchNorm"}

#: path → the rule that tells of it, and why it has no exact equal in torch
_NO_EQUAL: Mapping[str, tuple[str, str]] = {
    "parallel.LARC": ("AMP202", "torch has no LARC"),
    "parallel.Reducer": ("AMP202", "torch has no class for it"),
    "parallel.multiproc": ("AMP202", "start the program with torchrun"),
    "optimizers.FusedLAMB": ("AMP203", "torch has no LAMB"),
    "optimizers.FusedMixedPrecisionLamb": ("AMP203", "torch has no LAMB"),
    "optimizers.FusedNovoGrad": ("AMP203", "torch has no NovoGrad"),
    "contrib.optimizers": ("AMP203", "these optimizers round and keep their state in their own way"),
    "normalization.MixedFusedLayerNorm": ("AMP204", "torch's layer takes no input of another dtype than its weight's"),
    "normalization.MixedFusedRMSNorm": ("AMP204", "torch's layer takes no input of another dtype than its weight's"),
    "normalization": ("AMP204", "torch has nothing that does exactly the same"),
    "contrib.layer_norm": ("AMP206", "torch's layer takes no input of another dtype than its weight's"),
    "contrib.group_norm": ("AMP206", "torch's layer returns another dtype under autocast and has no activation"),
    "contrib.focal_loss": ("AMP206", "torch has no focal loss"),
    "contrib.xentropy": ("AMP206", "torch's cross_entropy returns another dtype under autocast"),
    "mlp": ("AMP206", "torch's layers name their parameters otherwise and start with other weights"),
    "fused_dense": ("AMP206", "torch's layers start with other weights"),
    "multi_tensor_apply": ("AMP206", "the drop-in says that the kernels aren't available"),
}


def find_family(path: str) -> tuple[str, str, Decide] | None:
    """Return the path in the table that ``path`` is or lies under, with its rule and what decides; None for others."""
    for known, (code, decide) in FAMILIES.items():
        if path == known or (path.startswith(known + ".") and known == "parallel.ReduceOp"):
            return known, code, decide
        if path.startswith(known + "."):
            return known, code, _part_of_it
    known = _longest(path)
    if known:
        return known, _NO_EQUAL[known][0], _no_equal
    return None


def _part_of_it(item: Item, file: LibraryFile) -> Outcome:
    return Stays(f"{name_of(item)} stays on the drop-in: a part of Apex's class or function is used here", holds=True)


def _no_equal(item: Item, file: LibraryFile) -> Outcome:
    why = _NO_EQUAL[_longest(item.path)][1]
    return Stays(f"`{item.path}` stays on the drop-in: {why}")


def _longest(path: str) -> str:
    fitting = [known for known in _NO_EQUAL if path == known or path.startswith(known + ".")]
    return max(fitting, key=len, default="")
