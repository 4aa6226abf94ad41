"""What the tests of the command share: running it, and checkpoints for it."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import pytest
import torch

from amp_migrate.convert.command.main import main

from .samples import FOLDER

NEEDLESS = torch.nn.Linear(3, 2)
SCALE = {"scale": 1024.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000, "_growth_tracker": 7}


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process."""

    def call(*arguments: object) -> Ran:
        capfd.readouterr()
        try:
            code = main([str(each) for each in arguments])
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        out, err = capfd.readouterr()
        return Ran(code, out, err)

    return call


def amp_state(*scales: float) -> dict[str, Any]:
    return {f"loss_scaler{i}": {"loss_scale": scale, "unskipped": 7} for i, scale in enumerate(scales or (1024.0,))}


def old(path: Path, **more: Any) -> Path:
    """A checkpoint with an amp state; ``more`` comes beside it."""
    torch.save({"epoch": 3, "model": NEEDLESS.state_dict(), "amp": amp_state(), **more}, path)
    return path


def native(path: Path) -> Path:
    torch.save({"epoch": 3, "model": NEEDLESS.state_dict(), "scaler": dict(SCALE)}, path)
    return path


def sample(name: str, path: Path) -> Path:
    shutil.copyfile(FOLDER / name, path)
    return path


#: torch.load takes only what is harmless; 1.13 has that too, and knows less of it
_HARMLESS: dict[str, Any] = {"weights_only": True} if int(torch.__version__.split(".")[0]) >= 2 else {}
_ALL: dict[str, Any] = {"weights_only": False} if _HARMLESS else {}


def read(path: Path) -> Any:
    return torch.load(path, **_HARMLESS)


def read_all(path: Path) -> Any:
    return torch.load(path, **_ALL)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


class Touches:
    """An object whose unpickling makes a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)
