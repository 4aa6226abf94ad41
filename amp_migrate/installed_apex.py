"""Which ``apex`` this Python would import, found by looking at files: it is never imported.

An old Apex may initialise CUDA, print or crash when imported, and the unrelated package of that name on PyPI raises an
ImportError about something else.
"""

from __future__ import annotations

import ast
import enum
import importlib.machinery
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator

#: what only NVIDIA's (and ROCm's) Apex has; the unrelated package has none of these
_MARKERS = ("normalization", "multi_tensor_apply", "contrib", "fp16_utils", "amp")
#: compiled modules of a full build; each is a top-level module of its own
_EXTENSIONS = ("amp_C", "apex_C", "fused_layer_norm_cuda", "syncbn", "mlp_cuda", "fused_dense_cuda", "xentropy_cuda")
#: the folder that child processes find the drop-in through; never the installed Apex
CHILD_PATH = str(Path(__file__).parent / "_children")


class ApexKind(enum.Enum):
    """What the name ``apex`` stands for here."""

    NONE = "none"
    WITH_AMP = "real, with amp"
    WITHOUT_AMP = "real, without amp"
    PYTHON_ONLY = "real, Python-only build"
    BROKEN = "real, but its import fails"
    UNRELATED = "the unrelated package of that name"
    FOLDER = "a folder that is no package"


#: kinds that stay importable beside the drop-in; all others are shadowed by it
KEPT_KINDS = (ApexKind.WITH_AMP, ApexKind.WITHOUT_AMP, ApexKind.PYTHON_ONLY)


@dataclass(frozen=True)
class InstalledApex:
    """What was found.

    Args:
        kind: see :class:`ApexKind`.
        location: the package's folder or file, or the folder of that name.
        has_amp: whether ``apex.amp`` is on disk.
        submodules: names of the modules directly below ``apex``.
        extensions: compiled modules that can be found.
        note: one sentence on why it is of this kind.
    """

    kind: ApexKind
    location: str | None = None
    has_amp: bool = False
    submodules: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    note: str = ""


def find_spec_of_apex() -> importlib.machinery.ModuleSpec | None:
    """The spec that ``import apex`` would use without the drop-in."""
    path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != CHILD_PATH]
    for finder in sys.meta_path:
        if getattr(finder, "is_amp_migrate", False):
            continue
        if finder is importlib.machinery.PathFinder:
            spec = importlib.machinery.PathFinder.find_spec("apex", path)
        else:
            find: Any = getattr(finder, "find_spec", None)
            spec = find("apex", None) if find is not None else None
        if spec is not None:
            return spec
    return None


def inspect_installed_apex() -> InstalledApex:
    """Look at the installed ``apex`` and say what it is."""
    spec = find_spec_of_apex()
    if spec is None:
        return InstalledApex(ApexKind.NONE, note="No package or folder called apex is on sys.path.")
    if spec.origin is None or spec.origin == "namespace":
        folder = next(iter(spec.submodule_search_locations or ()), None)
        return InstalledApex(ApexKind.FOLDER, folder, note=f"{folder} has no __init__.py: it is no installed Apex.")
    if not spec.submodule_search_locations:
        return InstalledApex(ApexKind.UNRELATED, spec.origin, note=f"{spec.origin} is a single module.")
    return _inspect_package(Path(next(iter(spec.submodule_search_locations))))


def _inspect_package(folder: Path) -> InstalledApex:
    submodules = tuple(sorted(_modules_in(folder)))
    extensions = tuple(name for name in _EXTENSIONS if importlib.util.find_spec(name) is not None)
    has_amp = "amp" in submodules
    if not any(marker in submodules for marker in _MARKERS):
        kind, note = ApexKind.UNRELATED, f"{folder} has none of NVIDIA Apex's modules."
    else:
        kind, note = _kind_of_real_apex(folder, has_amp, extensions)
    return InstalledApex(kind, str(folder), has_amp, submodules, extensions, note)


def _kind_of_real_apex(folder: Path, has_amp: bool, extensions: tuple[str, ...]) -> tuple[ApexKind, str]:
    broken = next(_import_problems(folder), None)
    if broken is not None:
        return ApexKind.BROKEN, broken
    missing = _wanted_extensions(folder) if not extensions else ()
    if missing:
        return ApexKind.PYTHON_ONLY, f"It needs compiled modules ({', '.join(missing)}) and has none of them."
    if has_amp:
        return ApexKind.WITH_AMP, "It has apex.amp."
    return ApexKind.WITHOUT_AMP, "It has no apex.amp: NVIDIA removed that in 2025."


def _modules_in(folder: Path) -> Iterator[str]:
    for entry in os.scandir(folder):
        if entry.is_dir() and entry.name.isidentifier() and entry.name != "__pycache__":
            yield entry.name
        elif entry.name.endswith(".py") and entry.name != "__init__.py":
            yield entry.name[:-3]


def _wanted_extensions(folder: Path) -> tuple[str, ...]:
    text = b"".join(_read(path) for path in sorted(folder.rglob("*.py")))
    return tuple(name for name in _EXTENSIONS if name.encode() in text)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _import_problems(folder: Path) -> Iterator[str]:
    """Say why importing the package must fail, following what its ``__init__.py`` imports unconditionally."""
    seen: set[Path] = set()
    queue = [folder / "__init__.py"]
    while queue:
        path = queue.pop()
        if path in seen:
            continue
        seen.add(path)
        try:
            tree = ast.parse(_read(path), str(path))
        except (SyntaxError, ValueError) as error:
            yield f"{path} can't be parsed: {error}."
            continue
        for name in _unconditional_imports(tree, _module_name(path, folder)):
            if name.split(".")[0] != "apex":
                if not _can_be_found(name):
                    yield f"{path} imports {name}, which isn't there."
                continue
            file = _file_of(name, folder)
            if file is None:
                yield f"{path} imports {name}, which isn't there."
            else:
                queue.append(file)


def _module_name(path: Path, folder: Path) -> str:
    parts = ["apex", *path.relative_to(folder).with_suffix("").parts]
    return ".".join(parts)


def _unconditional_imports(tree: ast.Module, module: str) -> Iterator[str]:
    """Absolute names of modules imported by top-level statements; ``module`` is dotted, packages end in __init__."""
    package = module.split(".")[:-1]
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            if node.module:
                yield ".".join([*base, node.module])
            else:
                yield from (".".join([*base, alias.name]) for alias in node.names)


def _can_be_found(name: str) -> bool:
    top = name.split(".")[0]
    looked_up = name if top == "torch" else top  # looking below a package imports it; torch is loaded anyway
    try:
        return top in sys.builtin_module_names or importlib.util.find_spec(looked_up) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _file_of(name: str, folder: Path) -> Path | None:
    base = folder.joinpath(*name.split(".")[1:])
    for candidate in (base / "__init__.py", base.parent / f"{base.name}.py"):
        if candidate.is_file():
            return candidate
    parent = base.parent / "__init__.py"  # `from . import x` may name something that the package itself defines
    return parent if _binds(parent, base.name) else None


def _binds(path: Path, name: str) -> bool:
    """Whether the module at ``path`` defines ``name``, or imports it from elsewhere."""
    return any(name in _bound_names(node) for node in ast.parse(_read(path)).body)


def _bound_names(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module):
        return [alias.asname or alias.name for alias in node.names]
    return []
