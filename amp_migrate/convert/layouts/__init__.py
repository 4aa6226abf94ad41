"""The layouts of checkpoints with Apex state, in the order in which they are looked for, and the walk over them."""

from __future__ import annotations

from typing import Any, Mapping

from ..notes import Kind, Note, Report
from ..options import Options
from .editing import Tree
from .fairseq import FAIRSEQ
from .fp16_optimizer import FP16_OPTIMIZER
from .layout import Layout as Layout
from .layout import Work
from .master_params import MASTER_PARAMS
from .modules import WHOLE_MODEL
from .moved_scalers import LIGHTNING, MOVED, MOVED_BACK
from .optimizer_objects import OPTIMIZER_OBJECT
from .optimizers import ADAM, FUSED, IDS
from .scalers import AMP_STATE, GRAD_SCALER, OLDER_SCALERS
from .sharded import SHARDED
from .trainers import TRAINER_STATE, TRAINING_ARGUMENTS
from .weights import PREFIX, ROUNDED

#: first what can't be converted, then what unwraps others, then states by themselves, then where frameworks keep them
_TO_NATIVE = (
    SHARDED,
    OPTIMIZER_OBJECT,
    WHOLE_MODEL,
    TRAINING_ARGUMENTS,
    TRAINER_STATE,
    FP16_OPTIMIZER,
    MASTER_PARAMS,
    FAIRSEQ,
    OLDER_SCALERS,
    AMP_STATE,
    IDS,
    FUSED,
    LIGHTNING,
    MOVED,
    ROUNDED,
    PREFIX,
)
_TO_APEX = (GRAD_SCALER, ADAM, MOVED_BACK, PREFIX)
LAYOUTS: Mapping[str, tuple[Layout, ...]] = {"native": _TO_NATIVE, "apex": _TO_APEX}


def convert_tree(root: Any, options: Options, report: Report) -> Any:
    """Return the tree of a checkpoint, converted; ``root`` isn't changed, and what needs no change is shared with it.

    Args:
        root: plain containers, with tensors as records.
        options: what the file doesn't say.
        report: gets a note for everything that changes, is lost or assumed, and the names of the layouts found.

    Raises:
        CannotConvert: for a state that can't be carried, or not without an option that is missing; says which.
        Unsafe: for pickled objects whose contents aren't known to be harmless.
    """
    work = Work(options, report)
    tree = Tree(root)
    for layout in LAYOUTS[options.to]:
        notes = len(report.notes)
        edits = layout.convert(tree, work)
        if edits or len(report.notes) > notes:
            report.layouts.append(layout.name)
            report.is_edited = report.is_edited or bool(edits)
        if edits:
            tree = Tree(tree.replaced(edits))
    if not report.layouts and not report.notes:
        report.notes.append(unchanged(options))
    return tree.root


def unchanged(options: Options) -> Note:
    """Return the note of a checkpoint that is as it should be."""
    return Note(Kind.KEPT, "", f"nothing in it that is not {options.to}'s already: unchanged")
