"""Telling a folder of ``torch.distributed.checkpoint`` from others, by what lies in it."""

from __future__ import annotations

from pathlib import Path

#: what the folder holds and where; a pickle
METADATA = ".metadata"
#: the ends of the names of its data files (torch/distributed/checkpoint/filesystem.py, ``DEFAULT_SUFFIX``)
DATA = ".distcp"
_HEAD = 4096


def is_distributed(folder: Path) -> bool:
    """Whether ``torch.distributed.checkpoint`` wrote this folder, or a part of what it wrote is left in it."""
    if any(each.suffix == DATA and each.is_file() for each in folder.iterdir()):
        return True
    metadata = folder / METADATA
    if not metadata.is_file():
        return False
    with open(metadata, "rb") as file:
        return b"torch.distributed" in file.read(_HEAD)
