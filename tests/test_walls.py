"""The three walls of the design: who may import what."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Iterator

import pytest
from conftest import ROOT


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").split(".")[0]


@pytest.mark.parametrize(
    "folder, forbidden", [("amp_migrate/apex", "libcst"), ("codemods", "torch"), ("amp_migrate/rewrite", "torch")]
)
def test_the_wall_stands(folder: str, forbidden: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    assert [str(f) for f in files if forbidden in set(_imported(f))] == []


def test_the_drop_in_never_parses_the_version_of_torch() -> None:
    guilty = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "amp_migrate" / "apex").rglob("*.py"))
        if path.name != "_native.py" and "torch.version" in path.read_text(encoding="utf-8")
    ]
    assert guilty == []
