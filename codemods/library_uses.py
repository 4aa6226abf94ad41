"""Where a file uses what Apex has besides training loops: every such use with the object that it names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Mapping

import libcst as cst

from .decisions import uses_of
from .imports import STAR, ApexImport, apex_imports
from .scopes import Names, Use
from .tree import dotted_name

#: module of Apex → the package that shows its names, and those names
_SHOWN_BY: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "amp.amp": (
        "amp",
        (
            "float_function",
            "half_function",
            "bfloat16_function",
            "promote_function",
            "register_float_function",
            "register_half_function",
            "register_bfloat16_function",
            "register_promote_function",
        ),
    ),
    "amp.frontend": ("amp", ("initialize",)),
    "amp.handle": ("amp", ("disable_casts",)),
    "contrib.clip_grad.clip_grad": ("contrib.clip_grad", ("clip_grad_norm_",)),
    "contrib.focal_loss.focal_loss": ("contrib.focal_loss", ("FocalLoss",)),
    "contrib.group_norm.group_norm": ("contrib.group_norm", ("GroupNorm",)),
    "contrib.layer_norm.layer_norm": ("contrib.layer_norm", ("FastLayerNorm",)),
    "contrib.xentropy.softmax_xentropy": ("contrib.xentropy", ("SoftmaxCrossEntropyLoss",)),
    "fp16_utils.fp16util": ("fp16_utils", ("clip_grad_norm", "to_python_float")),
    "mlp.mlp": ("mlp", ("MLP",)),
    "normalization.fused_layer_norm": (
        "normalization",
        ("FusedLayerNorm", "FusedRMSNorm", "MixedFusedLayerNorm", "MixedFusedRMSNorm"),
    ),
    "optimizers.fused_adagrad": ("optimizers", ("FusedAdagrad",)),
    "optimizers.fused_adam": ("optimizers", ("FusedAdam",)),
    "optimizers.fused_lamb": ("optimizers", ("FusedLAMB",)),
    "optimizers.fused_mixed_precision_lamb": ("optimizers", ("FusedMixedPrecisionLamb",)),
    "optimizers.fused_novograd": ("optimizers", ("FusedNovoGrad",)),
    "optimizers.fused_sgd": ("optimizers", ("FusedSGD",)),
    "parallel.LARC": ("parallel", ("LARC",)),
    "parallel.distributed": ("parallel", ("DistributedDataParallel", "Reducer")),
    "parallel.optimized_sync_batchnorm": ("parallel", ("SyncBatchNorm",)),
    "parallel.sync_batchnorm": ("parallel", ("SyncBatchNorm",)),
}

#: the path that a name has in its own module → the path by which its package shows it
_SHORT = {f"{module}.{name}": f"{package}.{name}" for module, (package, names) in _SHOWN_BY.items() for name in names}

_SETTERS = ("setattr", "delattr")
_WRITES = (cst.AssignTarget, cst.AugAssign, cst.AnnAssign, cst.Del)


@dataclass(frozen=True)
class Item:
    """One use of something of Apex: its path below ``apex``, by the shortest name, and the import it comes through."""

    path: str
    use: Use
    site: ApexImport

    @property
    def node(self) -> cst.CSTNode:
        """The expression that names it."""
        return self.use.node

    @property
    def call(self) -> cst.Call | None:
        """The call of it, if it is called right here."""
        parent = self.use.parent
        return parent if isinstance(parent, cst.Call) and parent.func is self.use.node else None

    @property
    def is_written(self) -> bool:
        """Whether something else is put in its place here, or in the place of a part of it."""
        parent = self.use.parent
        if isinstance(parent, cst.Call) and isinstance(parent.func, cst.Name) and parent.func.value in _SETTERS:
            return parent.args[0].value is self.use.node
        return isinstance(parent, _WRITES) and getattr(parent, "value", None) is not self.use.node


def library_items(names: Names) -> tuple[Item, ...]:
    """Return every use of Apex in the file, once, in the order of the imports."""
    found: dict[cst.CSTNode, Item] = {}
    for site in apex_imports(names, moved=True):
        if site.imported == STAR or not site.binds:
            continue
        for use in uses_of(site, names):
            path = ".".join(filter(None, (site.stands_for, *use.attributes)))
            found.setdefault(use.node, Item(shortened(path), use, site))
    return tuple(found.values())


def shortened(path: str) -> str:
    """Return ``"optimizers.FusedAdam.step"`` for ``"optimizers.fused_adam.FusedAdam.step"``.

    >>> shortened("parallel.LARC"), shortened("parallel.LARC.LARC")
    ('parallel.LARC', 'parallel.LARC')
    """
    for long, short in _SHORT.items():
        if path == long or path.startswith(long + "."):
            return short + path[len(long) :]
    return path


def bound_otherwise(item: Item, names: Names) -> cst.CSTNode | None:
    """Return what else gives the name of ``item`` a value, if anything does: then what it is can't be seen."""
    same = {site.node for site in apex_imports(names, moved=True) if site.stands_for == item.site.stands_for}
    return next((each for each in names.binders(item.use.name, item.use.scope) if each not in same), None)


def imported_names(names: Names) -> dict[cst.CSTNode, str]:
    """Return the alias nodes of all absolute imports, each with the dotted path that its name stands for."""
    return {alias: path for statement, _ in names.imports for alias, path in _imported(statement)}


def _imported(statement: cst.Import | cst.ImportFrom) -> Iterator[tuple[cst.CSTNode, str]]:
    if isinstance(statement.names, cst.ImportStar):
        return
    for alias in statement.names:
        name = alias.evaluated_name
        if isinstance(statement, cst.Import):
            yield alias, name if alias.asname is not None else name.partition(".")[0]
        elif statement.module is not None and not statement.relative:
            yield alias, f"{dotted_name(statement.module)}.{name}"
