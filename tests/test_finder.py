"""``install()``: whose module ``import apex`` finds, in this process and in others, and how it is taken back."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from amp_migrate import install, installed, uninstall
from amp_migrate.installed_apex import CHILD_PATH

pytestmark = pytest.mark.usefixtures("nothing_stays_installed")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path; the drop-in is taken back before the path is."""
    monkeypatch.setattr(sys, "path", [*sys.path[:1], str(tmp_path), *sys.path[1:]])
    for name in [n for n in sys.modules if (n + ".").startswith("apex.")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def package(folder: Path, *files: str, init: str = "") -> None:
    for name in ("__init__.py", *files):
        path = folder / "apex" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(init if name == "__init__.py" else "REAL = True\n", encoding="utf-8")


def test_every_way_of_importing_gives_the_same_module() -> None:
    import amp_migrate.apex.amp as ours

    install()
    import apex.amp
    from apex import amp

    assert amp is ours
    assert apex.amp is ours
    assert importlib.import_module("apex.amp") is ours
    assert sys.modules["apex.amp.handle"] is sys.modules["amp_migrate.apex.amp.handle"]


def test_there_is_one_amp_state_whatever_the_path() -> None:
    install()
    import apex.amp._amp_state as through_import
    from apex.amp import _amp_state as from_amp
    from apex.amp._amp_state import _amp_state as from_module

    import amp_migrate.apex.amp as ours

    assert from_amp is from_module is ours._amp_state
    assert through_import._amp_state is from_amp


def test_find_spec_finds_what_can_be_imported_and_nothing_else() -> None:
    install()
    assert importlib.util.find_spec("apex") is not None
    assert importlib.util.find_spec("apex.amp") is not None
    assert importlib.util.find_spec("apex.amp.scaler") is not None
    assert importlib.util.find_spec("apex.no_such_module") is None


@pytest.mark.parametrize("statement", ["import apex.no_such", "from apex import no_such", "from apex.no_such import x"])
def test_an_unknown_name_is_an_import_error_with_a_sentence(statement: str) -> None:
    install()
    with pytest.raises(ImportError, match="no_such.*this version serves"):
        exec(statement)


def test_an_unknown_attribute_is_an_attribute_error_so_that_hasattr_works() -> None:
    install()
    import apex

    assert not hasattr(apex, "no_such")


def test_a_version_query_is_answered() -> None:
    from importlib.metadata import version

    install()
    assert version("apex") == "0.1"


def test_installing_twice_changes_nothing() -> None:
    install()
    before = (list(sys.meta_path), list(sys.path), os.environ["PYTHONPATH"])
    install()
    assert (list(sys.meta_path), list(sys.path), os.environ["PYTHONPATH"]) == before
    assert installed()


def test_uninstall_leaves_nothing_behind() -> None:
    before = (list(sys.meta_path), list(sys.path), os.environ.get("PYTHONPATH"))
    install()
    import apex.amp

    uninstall()
    assert not installed()
    assert (list(sys.meta_path), list(sys.path), os.environ.get("PYTHONPATH")) == before
    assert [name for name in sys.modules if (name + ".").startswith("apex.")] == []
    with pytest.raises(ImportError):
        import apex  # noqa: F401


def test_a_real_apex_without_amp_keeps_its_modules_and_gets_ours(site: Path) -> None:
    package(site, "normalization.py")
    install()
    import apex.normalization
    from apex import amp

    assert amp.__name__ == "amp_migrate.apex.amp"
    assert apex.normalization.__file__ == str(site / "apex" / "normalization.py")
    assert apex.__file__ == str(site / "apex" / "__init__.py")
    uninstall()
    assert not hasattr(apex, "amp")


def test_a_real_apex_with_amp_gets_ours_too_since_its_own_is_broken_on_this_torch(site: Path) -> None:
    package(site, "amp/__init__.py", "normalization.py", init="from . import amp\n")
    install()
    from apex import amp, normalization

    assert amp.__name__ == "amp_migrate.apex.amp"
    assert normalization.REAL


def test_our_own_modules_never_stand_in_for_those_that_the_installed_apex_keeps(site: Path) -> None:
    importlib.import_module("amp_migrate.apex.normalization")
    package(site, "normalization.py")
    install()
    importlib.import_module("apex.amp")
    assert importlib.import_module("apex.normalization").REAL


def test_the_unrelated_package_is_shadowed(site: Path) -> None:
    package(site, "forms.py", init="from pyramid.session import X\n")
    install()
    from apex import amp

    assert amp.__name__ == "amp_migrate.apex.amp"


def test_an_apex_whose_import_fails_is_shadowed(site: Path) -> None:
    package(site, "normalization.py", init="import no_such_module_anywhere\n")
    install()
    from apex import amp

    assert amp.__name__ == "amp_migrate.apex.amp"


def test_a_folder_called_apex_is_shadowed(site: Path) -> None:
    (site / "apex").mkdir()
    install()
    from apex import amp

    assert amp.__name__ == "amp_migrate.apex.amp"


def test_modules_called_apex_that_were_loaded_before_come_back(site: Path) -> None:
    package(site, "forms.py")
    import apex as before

    install()
    import apex as ours

    assert ours is not before
    uninstall()
    assert sys.modules["apex"] is before


def test_the_backend_apex_leaves_the_import_alone(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(site, "amp/__init__.py")
    monkeypatch.setenv("AMP_MIGRATE_BACKEND", "apex")
    install()
    assert not installed()
    import apex.amp

    assert apex.amp.__file__ == str(site / "apex" / "amp" / "__init__.py")


def test_the_backend_apex_passes_our_own_package_through_as_well(site: Path, python) -> None:
    package(site, "amp/__init__.py", "amp/handle.py")
    code = (
        "from amp_migrate.apex import amp; import amp_migrate.apex.amp.handle as h, apex.amp.handle as real; "
        "print(amp.__file__, h is real)"
    )
    done = python("-c", code, PYTHONPATH=f"{ROOT}{os.pathsep}{site}", AMP_MIGRATE_BACKEND="apex")
    assert done.stdout.split() == [str(site / "apex" / "amp" / "__init__.py"), "True"], done.stderr


CHILD = """
import multiprocessing, subprocess, sys

def work(queue):
    from apex import amp
    queue.put((amp.__name__, hasattr(amp, "initialize")))

if __name__ == "__main__":
    import amp_migrate
    amp_migrate.install()
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    print(*queue.get(timeout=120))
    process.join()
    code = "import apex, sys; from apex import amp; print(apex.__name__, amp.__name__)"
    print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("beside", ["nothing", "real", "unrelated"])
def test_child_processes_find_it_too(tmp_path: Path, python, method: str, beside: str) -> None:
    site = tmp_path / "site"
    site.mkdir()
    if beside == "real":
        package(site, "normalization.py")
    elif beside == "unrelated":
        package(site, "forms.py", init="from pyramid.session import X\n")
    program = tmp_path / "program.py"
    program.write_text(CHILD, encoding="utf-8")
    done = python(str(program), method, PYTHONPATH=f"{ROOT}{os.pathsep}{site}")
    assert done.returncode == 0, done.stderr
    from_process, from_subprocess = done.stdout.split("\n")[:2]
    assert from_process == "amp_migrate.apex.amp True"
    package_name = "apex" if beside == "real" else "amp_migrate.apex"
    assert from_subprocess == f"{package_name} amp_migrate.apex.amp"


def test_the_folder_for_children_is_never_taken_for_an_installed_apex(monkeypatch: pytest.MonkeyPatch) -> None:
    from amp_migrate.installed_apex import ApexKind, inspect_installed_apex

    monkeypatch.setattr(sys, "path", [CHILD_PATH, *sys.path])
    assert inspect_installed_apex().kind is ApexKind.NONE


def test_installing_gives_no_warning_and_leaves_the_filters(python) -> None:
    code = (
        "import torch, warnings; before = list(warnings.filters); import amp_migrate; amp_migrate.install(); "
        "import apex.amp; print(before == warnings.filters)"
    )
    done = python("-W", "error::UserWarning", "-c", code)
    assert done.stdout.strip() == "True", done.stderr


def test_importing_the_drop_in_initialises_no_device(python) -> None:
    done = python("-c", "import torch, amp_migrate.apex.amp; print(torch.cuda.is_initialized())")
    assert done.stdout.strip() == "False", done.stderr


def test_a_torch_without_native_amp_and_no_apex_is_refused_before_anything_is_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from amp_migrate.detect import UnsupportedTorch

    monkeypatch.setenv("AMP_MIGRATE_BACKEND", "none")
    before = (list(sys.meta_path), list(sys.path))
    with pytest.raises(UnsupportedTorch, match=r"1\.6"):
        install()
    assert (list(sys.meta_path), list(sys.path)) == before
