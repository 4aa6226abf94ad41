"""Files of a run that share one training loop: amp is initialized in one and used in another.

Loops aren't followed across files yet. What is known here is only that they may reach across, from names and imports.
"""

from __future__ import annotations

import os
import re
from typing import Mapping

_INITIALIZES = re.compile(rb"\binitialize\b")
_SCALES = re.compile(rb"\bscale_loss\b")

_FROM_IMPORT = re.compile(rb"^[ \t]*from[ \t]+([\w.]+)[ \t]+import[ \t]+(.+)", re.MULTILINE)
_AMP_NAME = re.compile(rb"\bamp\b|\b[A-Z_]*(?:APEX|AMP)[A-Z_]*\b")


def partners(sources: Mapping[str, bytes]) -> dict[str, str]:
    """Return, for each file of ``sources`` whose amp another one shares, the path of such a file.

    Two files share a loop if one imports the other and one of them lacks what makes a loop whole.
    """
    users = {path: source for path, source in sources.items() if _INITIALIZES.search(source) or _SCALES.search(source)}
    found: dict[str, str] = {}
    for path, source in users.items():
        for other, text in users.items():
            if other != path and not (_is_whole(source) and _is_whole(text)) and _imports(text, other, path):
                found.setdefault(path, other)
                found.setdefault(other, path)
    return found


def reexported(sources: Mapping[str, bytes]) -> dict[str, str]:
    """Return, by module name, a file that imports ``amp``, or a flag about it, from another module than Apex."""
    found: dict[str, str] = {}
    for path, source in sources.items():
        for match in _FROM_IMPORT.finditer(source):
            module = match.group(1).rpartition(b".")[2]
            if module not in (b"", b"apex", b"amp", b"torch", b"cuda") and _AMP_NAME.search(match.group(2)):
                found.setdefault(os.fsdecode(module), path)
    return found


def may_reexport(source: bytes) -> bool:
    """Return False only for a source in which :func:`reexported` finds nothing. Cheap."""
    return b" amp" in source or b"APEX" in source or b"AMP" in source


def _is_whole(source: bytes) -> bool:
    return bool(_INITIALIZES.search(source) and _SCALES.search(source))


def _imports(source: bytes, importer: str, path: str) -> bool:
    """Return whether ``source`` may import the module at ``path``."""
    name = os.path.splitext(os.path.basename(path))[0]
    if name == "__init__":
        name = os.path.basename(os.path.dirname(os.path.abspath(path)))
    pattern = rb"\b(?:from|import)\b(?:[^\n\\]|\\\r?\n)*\b" + re.escape(os.fsencode(name)) + rb"\b"
    return re.search(pattern, source) is not None
