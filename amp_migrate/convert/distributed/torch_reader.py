"""A reader for ``torch.distributed.checkpoint`` that opens every chunk with the inert machine."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from ..errors import Damaged
from ..torch_tensors import Loading, dtype_of
from .entries import open_tensor
from .metadata import Saved, SavedTensor


class _Reader(StorageReader):
    """Its metadata are built anew from what ``.metadata`` says, so that no pickle of the folder reaches DCP."""

    def __init__(self, saved: Saved) -> None:
        super().__init__()
        self._saved = saved

    def reset(self, checkpoint_id: Any = None) -> None:
        """There is one folder, which was read already."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return Metadata({name: _described(entry) for name, entry in self._saved.tensors.items()})

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing is needed."""

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: Any) -> Any:
        return plans

    def read_data(self, plan: Any, planner: Any) -> Future[None]:
        for item in plan.items:
            index = item.storage_index
            part = _chunk(self._saved, index.fqn, tuple(index.offset))
            for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths)):
                part = part.narrow(dimension, start, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(part)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True


def reader_of(saved: Saved) -> StorageReader:
    """Return a reader of a folder's tensors."""
    return _Reader(saved)


def _described(entry: SavedTensor) -> TensorStorageMetadata:
    chunks = [ChunkStorageMetadata(torch.Size(each.offsets), torch.Size(each.sizes)) for each in entry.chunks]
    return TensorStorageMetadata(TensorProperties(dtype=dtype_of(entry.dtype)), torch.Size(entry.shape), chunks)


def _chunk(saved: Saved, name: str, offsets: tuple[int, ...]) -> torch.Tensor:
    """Return one chunk of a tensor.

    Raises:
        Damaged: it isn't what ``.metadata`` says.
    """
    entry = saved.tensors[name]
    (chunk,) = (each for each in entry.chunks if each.offsets == offsets)
    record = open_tensor(chunk.file, name)
    if (record.dtype, record.shape) != (entry.dtype, chunk.sizes):
        raise Damaged(
            f"{chunk.file.path}: {name} is {record.dtype} of {record.shape}, and .metadata says {entry.dtype} of "
            f"{chunk.sizes}"
        )
    return Loading().tensor(record).detach()
