"""What the folders around a file say about the names that it imports."""

from __future__ import annotations

import os
from typing import Sequence

_SPELLINGS = ("apex.py", os.path.join("apex", "__init__.py"))


def own_apex_module(folder: str, roots: Sequence[str]) -> str:
    """Return the path of the module that ``import apex`` would find instead of NVIDIA's, or ``""``.

    Python looks in the folder of the program and in the working directory; ``roots`` may be either. A folder that is a
    package doesn't count: there the module is called ``package.apex``.
    """
    for each in dict.fromkeys((folder or os.curdir, *roots, os.curdir)):
        found = _apex_in(each)
        if found:
            return found
    return ""


def _apex_in(folder: str) -> str:
    if os.path.exists(os.path.join(folder, "__init__.py")):
        return ""
    for spelling in _SPELLINGS:
        path = os.path.normpath(os.path.join(folder, spelling))
        if os.path.isfile(path):
            return path
    return ""
