"""Which parts of Apex the drop-in (``amp_migrate.apex``) has, as a table.

A row speaks for a module and for everything below it; the longest row that fits decides. A part without a row isn't
served. When the drop-in learns a module, a row is added here, and nothing else has to change.
"""

from __future__ import annotations

from typing import Mapping, TypeVar

Row = TypeVar("Row")

APEX = "apex"
DROPIN = "amp_migrate.apex"

#: path below ``apex`` → whether the drop-in has it
SERVED: Mapping[str, bool] = {
    "amp": True,
    "contrib": False,  # most of it is names that raise on use: an installed Apex does better
    "contrib.clip_grad": True,
    "contrib.focal_loss": True,
    "contrib.group_norm": True,
    "contrib.layer_norm": True,
    "contrib.optimizers": True,
    "contrib.xentropy": True,
    "fp16_utils": True,
    "fused_dense": True,
    "mlp": True,
    "multi_tensor_apply": True,
    "normalization": True,
    "optimizers": True,
    "parallel": True,
    "reparameterization": True,
    "RNN": True,
}

#: True once every public part of Apex has a row that says True. Only then may the bare module be handed to code
#: that can't be seen (``f(apex)``, ``import_module("apex")``).
SERVES_WHOLE_TREE = False

#: path below ``apex`` → what a person can use instead, as the object of "use …"
INSTEAD: Mapping[str, str] = {
    "contrib.fmha": "torch.nn.functional.scaled_dot_product_attention",
    "contrib.groupbn": "torch.nn.SyncBatchNorm with channels_last tensors",
    "contrib.index_mul_2d": "in1[idx] * in2",
    "contrib.multihead_attn": "torch.nn.MultiheadAttention or torch.nn.functional.scaled_dot_product_attention",
    "contrib.sparsity": "torch.ao.pruning.WeightNormSparsifier",
    "contrib.transducer": "torchaudio.functional.rnnt_loss",
    "pyprof": "torch.profiler",
    "transformer": "Megatron-core",
}


def path_below_apex(dotted: str) -> str | None:
    """Return ``"amp.handle"`` for ``"apex.amp.handle"``, ``""`` for ``"apex"``, None for what isn't Apex.

    >>> path_below_apex("apexlib.amp") is None
    True
    """
    first, _, rest = dotted.partition(".")
    return rest if first == APEX else None


def is_served(path: str) -> bool:
    """Return whether the drop-in has ``path`` (below ``apex``; ``""`` is the package itself, which it has).

    >>> is_served("amp.handle"), is_served("transformer")
    (True, False)
    """
    if not path:
        return True
    return bool(_longest_row(SERVED, path))


def instead_of(path: str) -> str | None:
    """Return what a person can use instead of ``path``, if anything is known."""
    return _longest_row(INSTEAD, path)


def _longest_row(table: Mapping[str, Row], path: str) -> Row | None:
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        row = ".".join(parts[:length])
        if row in table:
            return table[row]
    return None
