"""Records to files: write a tree as a file that ``torch.load`` opens."""

from __future__ import annotations

from .write_file import write_checkpoint as write_checkpoint

__all__ = ["write_checkpoint"]
