"""Loading and saving through ``torch.distributed.checkpoint`` itself, in one process and without a process group.

DCP plans which part of which tensor comes from which chunk. The bytes it gets from here: a reader of its own kind,
which opens every chunk with the inert machine, where DCP's would unpickle ``.metadata`` and the entries.
"""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any, Iterator, Mapping

import torch

from ..errors import CannotConvert
from ..torch_tensors import dtype_of
from .metadata import Saved, SavedTensor


def check_torch() -> None:
    """Raise CannotConvert if this torch has no ``torch.distributed.checkpoint.load``."""
    if torch.distributed.is_available():
        with contextlib.suppress(ImportError):
            from torch.distributed.checkpoint.state_dict_loader import load  # noqa: F401

            return
    raise CannotConvert(
        "a folder of torch.distributed.checkpoint needs torch 2.2 or newer, built with distributed; this is "
        f"{torch.__version__}. Convert it with a newer one: any reads what older ones saved"
    )


def load_tensors(saved: Saved) -> dict[str, torch.Tensor]:
    """Return all tensors of a folder by their flat names, put together from their chunks, on the CPU.

    Raises:
        Damaged: for a chunk that isn't what ``.metadata`` says.
        Unsafe: a chunk can't be read without executing something.
        CannotConvert: this torch has no dtype of that name.
    """
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import load

    from .torch_reader import reader_of

    tensors = {name: _empty(entry) for name, entry in saved.tensors.items()}
    if tensors:
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        with _quiet(), _own_errors():
            load(tensors, storage_reader=reader_of(saved), planner=planner)
    return tensors


def save_state(state: Mapping[str, Any], folder: Path, name: Path) -> None:
    """Write ``state`` into ``folder``, as one process. The metadata say that it is called ``name``."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    class Writer(FileSystemWriter):
        def storage_meta(self) -> Any:
            meta = super().storage_meta() if hasattr(FileSystemWriter, "storage_meta") else None
            if meta is not None:
                meta.checkpoint_id = str(name)
            return meta

    with _quiet():
        save(dict(state), storage_writer=Writer(str(folder)))


def _empty(entry: SavedTensor) -> torch.Tensor:
    """Zeros, so that nothing of this process's memory gets into a file whose chunks overlap."""
    made = torch.zeros(entry.shape, dtype=dtype_of(entry.dtype))
    return made.requires_grad_() if entry.requires_grad else made


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group, and that typed storages are deprecated
        yield


@contextlib.contextmanager
def _own_errors() -> Iterator[None]:
    """Raise what the reader raised instead of DCP's account of the failures of all ranks."""
    try:
        yield
    except BaseException as error:
        for each in getattr(error, "failures", {}).values():
            inner = each[0] if isinstance(each, tuple) else each
            if isinstance(inner, (CannotConvert, OSError)):
                raise inner from error
        raise
