"""Each test of the drop-in starts and ends without any of it in place."""

from __future__ import annotations

import warnings
from typing import Any, Iterator

import pytest
import torch

from amp_migrate.apex.amp._amp_state import _amp_state
from amp_migrate.apex.amp._patches import patches


@pytest.fixture(autouse=True)
def clean_amp() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    patches.undo_all()
    _amp_state.clear()


@pytest.fixture
def amp() -> Any:
    import amp_migrate.apex.amp as amp

    return amp


@pytest.fixture
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
