"""The package installs and imports in every way that users and tools do it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest
from conftest import ROOT, clean_environment

import amp_migrate

PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_importing_the_package_loads_neither_torch_nor_libcst(python) -> None:
    done = python("-c", "import sys, amp_migrate; print([m for m in ('torch', 'libcst', 'rich') if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_importing_the_package_takes_under_50_ms_more_than_bare_python() -> None:
    def best(code: str) -> float:
        times = []
        for _ in range(7):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], env=clean_environment(), check=True)
            times.append(time.perf_counter() - start)
        return min(times)

    assert best("import amp_migrate") - best("pass") < 0.05


@pytest.mark.parametrize("verb", ["", "detect", "run", "rewrite"])
def test_help_needs_no_torch_and_no_libcst(python, verb: str) -> None:
    module = f"amp_migrate.{verb}" if verb else "amp_migrate"
    code = (
        "import runpy, sys; sys.argv = ['x', '--help']\n"
        f"try: runpy.run_module({module!r}, run_name='__main__', alter_sys=True)\n"
        "except SystemExit as e: print(e.code, [m for m in ('torch', 'libcst', 'rich') if m in sys.modules])"
    )
    done = python("-c", code)
    assert done.stdout.strip().endswith("0 []"), done.stdout + done.stderr


def test_the_version_stands_in_one_place() -> None:
    assert re.search(r'^version = \{ attr = "amp_migrate.__version__" \}', PYPROJECT, re.M)
    assert not re.search(r'^version = "', PYPROJECT, re.M)


def test_the_packages_in_pyproject_are_those_on_disk() -> None:
    block = re.search(r"^packages = \[(.*?)^\]", PYPROJECT, re.M | re.S)
    assert block is not None
    listed = set(re.findall(r'"([\w.]+)"', block.group(1)))
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "amp_migrate").rglob("__init__.py")
        if "codemods" not in path.relative_to(ROOT).parts
    }
    below = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "codemods").rglob("__init__.py")}
    assert listed == found | {f"amp_migrate.{name}" for name in below}


def test_every_name_of_the_public_face_can_be_imported() -> None:
    for name in amp_migrate.__all__:
        assert getattr(amp_migrate, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        amp_migrate.nothing  # noqa: B018


def _fresh_clone(tmp_path: Path) -> Path:
    clone = tmp_path / "clone"
    shutil.copytree(
        ROOT, clone, symlinks=True,
        ignore=shutil.ignore_patterns(".git", ".venv*", "*.egg-info", "build", "dist", "__pycache__", ".*_cache"),
    )  # fmt: skip
    return clone


_USE = (
    "import amp_migrate, amp_migrate.codemods, amp_migrate.apex; "
    "from amp_migrate.rewrite import rewrite_source; print(amp_migrate.__file__)"
)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["regular", "editable", "wheel"])
def test_it_works_installed_from_elsewhere_and_from_the_clone(tmp_path: Path, how: str) -> None:
    clone = _fresh_clone(tmp_path)
    env_dir = tmp_path / "env"
    # --system-site-packages borrows this environment's torch and libcst: only our own package is installed
    venv.create(env_dir, with_pip=True, system_site_packages=False)
    interpreter = str(env_dir / "bin" / "python")
    borrowed = next(p for p in sys.path if p.endswith("site-packages"))
    site = subprocess.run(
        [interpreter, "-c", "import site; print(site.getsitepackages()[0])"], capture_output=True, text=True, check=True
    ).stdout.strip()
    source = str(clone)
    build = [interpreter, "-m", "pip", "install", "-q", "--no-deps"]
    if how == "wheel":
        subprocess.run(
            [interpreter, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path / "w"), source], check=True
        )
        (wheel,) = (tmp_path / "w").glob("*.whl")
        assert wheel.name.endswith("py3-none-any.whl")
        source = str(wheel)
    subprocess.run([*build, *(["-e"] if how == "editable" else []), source], check=True)
    (Path(site) / "zz_borrowed.pth").write_text(_without_our_own_path(borrowed), encoding="utf-8")
    env = {k: v for k, v in clean_environment().items() if k != "PYTHONPATH"}
    for cwd in (tmp_path, clone):
        done = subprocess.run([interpreter, "-c", _USE], cwd=cwd, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    tool = subprocess.run(
        [str(env_dir / "bin" / "amp-migrate"), "--version"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert tool.stdout.strip() == f"amp-migrate {amp_migrate.__version__}", tool.stderr


def _without_our_own_path(site_packages: str) -> str:
    """A .pth line that adds a site-packages folder, but not the .pth files in it (an editable install of ourselves)."""
    return f"{site_packages}\n"


def test_a_plain_clone_works_from_its_root_and_from_elsewhere(tmp_path: Path) -> None:
    clone = _fresh_clone(tmp_path)
    for cwd, path in ((clone, ""), (tmp_path, str(clone))):
        done = subprocess.run(
            [sys.executable, "-c", _USE],
            cwd=cwd,
            env=clean_environment(PYTHONPATH=path),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert str(clone) in done.stdout


def test_mypy_sees_through_the_codemods_link(python, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import amp_migrate.codemods as c\nreveal_type(c)\n", encoding="utf-8")
    done = python("-m", "mypy", "--strict", "--config-file=", str(program), timeout=600)
    assert "types.ModuleType" in done.stdout and "error" not in done.stdout, done.stdout + done.stderr
