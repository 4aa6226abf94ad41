"""``install()``: make ``import apex`` find the drop-in, in this process and in those it starts.

A real Apex stays importable: only what it lacks is supplied, and ``apex.amp``, which is broken on every torch since
1.10 (docs/decisions.md). The unrelated package of that name, a folder, and an Apex whose import fails are shadowed.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Iterable, Sequence

from .aliases import AliasFinder
from .detect import detect_environment, require_backend
from .installed_apex import CHILD_PATH, KEPT_KINDS, ApexKind, InstalledApex, find_spec_of_apex

_APEX_VERSION = "0.1"  # what setup.py of NVIDIA's Apex always said


class ApexFinder(AliasFinder):
    """Answers for ``apex``: with the drop-in's modules, or with the installed Apex's where that has them."""

    def __init__(self, installed_apex: InstalledApex) -> None:
        super().__init__("apex", "amp_migrate.apex")
        self.keeps_installed = installed_apex.kind in KEPT_KINDS
        self._elsewhere = _supplied_elsewhere(installed_apex) if self.keeps_installed else frozenset()
        #: modules called apex that were loaded before, to be put back
        self.displaced: dict[str, ModuleType] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of an Apex module, as ``import`` and ``importlib.util.find_spec`` ask for it.

        Raises:
            ImportError: if neither side has it and it is being imported (a mere query gets None).
        """
        if self.keeps_installed and fullname == "apex":
            return find_spec_of_apex()
        spec = super().find_spec(fullname, path, target)
        is_ours = (fullname + ".").startswith("apex.") and not self.keeps_installed
        if spec is None and is_ours and _is_an_import(sys._getframe(1)):
            raise ImportError(_sentence_on_missing(fullname), name=fullname)
        return spec

    def serves(self, fullname: str) -> bool:
        """Whether the drop-in supplies this module, rather than the installed Apex."""
        return super().serves(fullname) and (fullname.split(".") + [""])[1] not in self._elsewhere

    def find_distributions(self, context: Any = None) -> Iterable[Any]:
        """Answer ``importlib.metadata.version("apex")`` where the drop-in shadows whatever is there."""
        if not self.keeps_installed and getattr(context, "name", None) in (None, "apex"):
            from importlib.metadata import Distribution

            class DropInDistribution(Distribution):
                def read_text(self, filename: str) -> str | None:
                    metadata = f"Metadata-Version: 2.1\nName: apex\nVersion: {_APEX_VERSION}\n"
                    return metadata if filename == "METADATA" else None

                def locate_file(self, path: Any) -> Any:
                    return os.path.join(os.path.dirname(__file__), str(path))

            yield DropInDistribution()


def _supplied_elsewhere(installed_apex: InstalledApex) -> frozenset[str]:
    """The modules that the installed Apex keeps. A Python-only build keeps those that we don't have."""
    from .apex import NAME_ONLY, SUBMODULES

    ours = {"amp"} if installed_apex.kind is not ApexKind.PYTHON_ONLY else set(SUBMODULES) - set(NAME_ONLY)
    return frozenset(installed_apex.submodules) - ours


def _is_an_import(frame: Any) -> bool:
    """Whether the finder was asked by ``import`` rather than by a query such as ``importlib.util.find_spec``."""
    return frame.f_back is not None and frame.f_back.f_code.co_name.startswith("_find_and_load")


def _sentence_on_missing(fullname: str) -> str:
    from .apex import missing_name

    return missing_name(fullname[len("apex.") :])


def install() -> None:
    """Make ``import apex`` and everything below it find the drop-in. Calling it again changes nothing.

    Raises:
        UnsupportedTorch: if there is no torch with native AMP, nor an Apex to pass through to. Nothing is changed then.
    """
    if installed():
        return
    environment = detect_environment()
    if require_backend(environment).name == "apex":
        return  # `import apex` finds the real one by itself
    finder = ApexFinder(environment.apex)
    for name in [n for n in sys.modules if (n + ".").startswith("apex.")]:
        if not finder.keeps_installed or (name + ".").startswith("apex.amp."):
            finder.displaced[name] = sys.modules.pop(name)
    sys.meta_path.insert(0, finder)
    _put_in_front_for_children()


def installed() -> bool:
    """Whether ``import apex`` finds the drop-in."""
    return _current() is not None


def uninstall() -> None:
    """Take back everything: the name ``apex``, and whatever the drop-in changed in torch, models and optimizers."""
    finder = _current()
    if finder is None:
        return
    sys.meta_path.remove(finder)
    for name, module in list(sys.modules.items()):
        if (name + ".").startswith("apex.") and (getattr(module, "__name__", "") + ".").startswith("amp_migrate."):
            del sys.modules[name]
            parent, _, child = name.rpartition(".")
            if finder.keeps_installed and vars(sys.modules.get(parent, module)).get(child) is module:
                delattr(sys.modules[parent], child)
    sys.modules.update(finder.displaced)
    _take_from_children()
    restore_torch()


def restore_torch() -> None:
    """Undo what the drop-in's amp changed outside itself, if it was ever loaded."""
    if "amp_migrate.apex.amp" in sys.modules:
        from .apex.amp._amp_state import _amp_state
        from .apex.amp._patches import patches

        patches.undo_all()
        _amp_state.clear()


def _current() -> ApexFinder | None:
    return next((f for f in sys.meta_path if isinstance(f, ApexFinder)), None)


def _put_in_front_for_children() -> None:
    """Spawned processes copy ``sys.path``, others read PYTHONPATH: both then find our ``apex`` first."""
    if CHILD_PATH not in sys.path:
        sys.path.insert(1, CHILD_PATH)  # programs take sys.path[0] for their own folder
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([CHILD_PATH, before] if before else [CHILD_PATH])


def _take_from_children() -> None:
    if CHILD_PATH in sys.path:
        sys.path.remove(CHILD_PATH)
    rest = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != CHILD_PATH]
    if rest:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)
