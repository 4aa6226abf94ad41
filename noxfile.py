"""``nox``: the drop-in and the detector on every torch that the README names. A missing interpreter is skipped.

nox                     the whole matrix
nox -s "matrix-2.4.1"   one torch
nox -s packages         real packages from the index, through their own Apex branch
"""

from __future__ import annotations

import nox

# virtualenv no longer makes environments for Python 3.8, and torch 1.10 needs the setuptools that venv brings
nox.options.default_venv_backend = "venv"
nox.options.sessions = ["matrix", "packages"]
nox.options.error_on_missing_interpreters = False
nox.options.reuse_existing_virtualenvs = True

#: torch → the interpreter that its wheels are for
MATRIX = {
    "1.6.0": "3.8",
    "1.10.2": "3.9",
    "1.13.1": "3.10",
    "2.0.1": "3.10",
    "2.4.1": "3.11",
    "2.6.0": "3.12",
    "2.15.0": "3.13",
}

TESTS = ["tests/dropin", "tests/test_detect.py", "tests/test_finder.py", "tests/test_run.py", "tests/test_programs.py"]


def _numpy(torch: str) -> str:
    """The numpy that this torch was built against: before 2.3 it fails on numpy 2."""
    old = tuple(map(int, torch.split(".")[:2])) < (2, 3)
    return "numpy<2" if old else "numpy"


@nox.session
@nox.parametrize("torch, python", [nox.param(t, p, id=t) for t, p in MATRIX.items()])
def matrix(session: nox.Session, torch: str) -> None:
    """The tests of drop-in, detector, finder and run, and all legacy programs."""
    # a constraint on the newest torch, where one is configured, would hide the newest column
    session.install(f"torch=={torch}", _numpy(torch), "pytest", env={"PIP_CONSTRAINT": "/dev/null"})
    session.install("-e", ".")
    args = session.posargs or ["-m", "not slow"]
    session.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, *args, env={"OMP_NUM_THREADS": "2"})


@nox.session(python="3.11")
def packages(session: nox.Session) -> None:
    """Old packages from the index train through their own Apex branch."""
    session.install("torch==2.4.1", "numpy<2", "pytest", "transformers==4.28.1", "pytorch-ignite==0.4.13")
    session.install("-e", ".")
    session.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/packages", *session.posargs)
