"""The table of what the rewriter may move to the drop-in is true."""

from __future__ import annotations

import importlib

import pytest

from amp_migrate.apex import NAME_ONLY, SUBMODULES
from amp_migrate.codemods.dropin import SERVED


@pytest.mark.parametrize("path", [path for path, served in SERVED.items() if served])
def test_what_is_served_can_be_imported(path: str) -> None:
    importlib.import_module(f"amp_migrate.apex.{path}")


def test_every_module_of_the_drop_in_is_served_but_for_those_that_raise_on_use() -> None:
    served = {path.split(".")[0] for path, is_served in SERVED.items() if is_served}
    assert served == set(SUBMODULES) - set(NAME_ONLY)
