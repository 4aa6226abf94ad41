"""Files to records: open a checkpoint without executing anything of it."""

from __future__ import annotations

from .open_file import MAX_DEPTH as MAX_DEPTH
from .open_file import open_checkpoint as open_checkpoint
from .opened import Opened as Opened

__all__ = ["MAX_DEPTH", "Opened", "open_checkpoint"]
