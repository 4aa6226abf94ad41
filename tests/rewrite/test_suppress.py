"""Comments by which a person keeps lines, or a whole file, as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_migrate.codemods.registry import all_rules
from amp_migrate.codemods.target import NATIVE, SHIM, Target
from amp_migrate.rewrite import Outcome, Settings, rewrite_source
from amp_migrate.rewrite.cli import main
from amp_migrate.rewrite.suppress import is_ignored, skips_file, suppressions

TO_SHIM = Settings(Target(to=SHIM))
IGNORE_ALL = b"  # amp-migrate: ignore"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (b"", {}),
        (b"x = 1\n", {}),
        (b"x  # amp-migrate: ignore\n", {1: None}),
        (b"x  # amp-migrate: ignore", {1: None}),
        (b"x  #amp-migrate:ignore because of this\n", {1: None}),
        (b"x  # noqa: E501 # amp-migrate: ignore[AMP001]\n", {1: frozenset({"AMP001"})}),
        (b"a\nx  # amp-migrate: ignore[amp001, AMP002]\n", {2: frozenset({"AMP001", "AMP002"})}),
        (b"x  # amp-migrate: ignore[]\n", {1: frozenset()}),
        (b"x  # amp-migrate: ignore[AMP001\n", {}),  # not closed: not everything
        (b"x  # amp-migrate: ignored\n", {}),
        (b"x  # amp-migrate: ignore-this\n", {}),
        (b"x  # amp-migrate: skip-file\n", {}),
        (b"x = '# amp-migrate: ignore'\n", {}),
        (b'"""\n# amp-migrate: ignore\n"""\n', {}),
        (b"# amp-migrate: ignore\nx\n", {1: None}),
        (b"f(\n    a,  # amp-migrate: ignore\n    b,\n)\n", {2: None}),
        (b"f(\n    a,\n)  # amp-migrate: ignore[A]\n", {1: frozenset("A"), 2: frozenset("A"), 3: frozenset("A")}),
        (b"f(  # amp-migrate: ignore[A]\n)  # amp-migrate: ignore[B]\n", {1: frozenset("AB"), 2: frozenset("B")}),
        (b"if x:  # amp-migrate: ignore\n    y\n    # amp-migrate: ignore\nz\n", {1: None, 3: None}),
        (b"\xef\xbb\xbfx  # amp-migrate: ignore\r\ny\r\n", {1: None}),
        (b"# coding: latin-1\nx  # \xe9 # amp-migrate: ignore\n", {2: None}),
        (b"x  # amp-migrate: ignore\n(\n", {1: None}),
    ],
)
def test_the_comments_of_a_source_by_line(source: bytes, expected: dict[int, object]) -> None:
    assert suppressions(source) == expected


def test_a_line_ignores_the_codes_it_names_or_all_of_them() -> None:
    ignored = {1: None, 2: frozenset({"AMP001"})}
    assert is_ignored(ignored, 1, "AMP002")
    assert is_ignored(ignored, 2, "AMP001")
    assert not is_ignored(ignored, 2, "AMP002")
    assert not is_ignored(ignored, 3, "AMP001")


def codes(source: bytes) -> list[tuple[int, str]]:
    return [(each.line, each.code) for each in rewrite_source(source, TO_SHIM).findings]


def test_what_is_found_on_an_ignored_line_is_not_told() -> None:
    source = b"from apex import pyprof\nfrom apex import transformer"
    assert codes(source) == [(1, "AMP002"), (2, "AMP002")]
    assert codes(source + IGNORE_ALL) == [(1, "AMP002")]
    assert codes(source + b"  # amp-migrate: ignore[AMP002,AMP003]") == [(1, "AMP002")]
    assert codes(source + b"  # amp-migrate: ignore[AMP001]") == [(1, "AMP002"), (2, "AMP002")]
    silent = rewrite_source(b"from apex import pyprof" + IGNORE_ALL, TO_SHIM)
    assert (silent.outcome, silent.findings, silent.findings_after) == (Outcome.UNCHANGED, (), ())


@pytest.mark.parametrize("comment", [IGNORE_ALL, b"  # amp-migrate: ignore[AMP001]"])
def test_a_rule_that_would_change_an_ignored_line_is_not_run_on_the_file(comment: bytes) -> None:
    source = b"import apex\nfrom apex import amp" + comment + b"\nfrom apex import pyprof\n"
    result = rewrite_source(source, TO_SHIM)
    assert result.source == source
    assert result.edits == {}
    assert [(each.line, each.code) for each in result.findings] == [(3, "AMP002")]  # the other rules are


@pytest.mark.parametrize(
    "source",
    [
        b"from apex import amp\nx = 1" + IGNORE_ALL + b"\n",
        b"from apex import pyprof" + IGNORE_ALL + b"\nfrom apex import amp\n",
        b"from apex import amp  # amp-migrate: ignore[AMP002]\n",
        b"\x0cx = 1" + IGNORE_ALL + b"\n\x0cfrom apex import amp\n",
    ],
)
def test_a_comment_on_a_line_that_a_rule_leaves_alone_stops_no_rule(source: bytes) -> None:
    result = rewrite_source(source, TO_SHIM)
    assert result.source == source.replace(b"from apex import amp", b"from amp_migrate.apex import amp")
    assert result.outcome is Outcome.CHANGED


@pytest.mark.parametrize("to", [SHIM, NATIVE])
def test_a_file_that_says_so_is_skipped_by_name(to: str) -> None:
    source = b"# amp-migrate: skip-file\nfrom apex import amp, transformer\n"
    result = rewrite_source(source, Settings(Target(to=to)))
    assert (result.outcome, result.source, result.findings) == (Outcome.SKIPPED, source, ())
    assert result.reason == "it says `# amp-migrate: skip-file`"


def test_a_file_that_only_quotes_it_is_not_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert skips_file(b"x = 1  # amp-migrate: skip-file, it's a copy\n")
    assert not skips_file(b"# amp-migrate: skip-files\n")
    assert not skips_file(b"x = '# amp-migrate: skip-file'\n")
    file = tmp_path / "x.py"
    file.write_bytes(b"from apex import amp\n# amp-migrate: skip-file\n")
    assert main([str(file), "--to", "shim"]) == 0
    assert f"skipped {file}: it says `# amp-migrate: skip-file`" in capsys.readouterr().out


LOOP = b"""\
import torch
from apex import amp


def train(model, optimizer, loader, criterion):
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for data, target in loader:
        optimizer.zero_grad()
        loss = criterion(model(data), target)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
"""
LINES = [number for number, line in enumerate(LOOP.splitlines()) if b"amp." in line]


@pytest.mark.parametrize("line", LINES)
def test_a_loop_with_an_ignored_line_goes_to_the_drop_in_as_a_whole(line: int) -> None:
    lines = LOOP.splitlines(keepends=True)
    lines[line] = lines[line].rstrip() + IGNORE_ALL + b"\n"
    source = b"".join(lines)
    result = rewrite_source(source)
    assert result.outcome is Outcome.CHANGED
    assert result.source == source.replace(b"from apex", b"from amp_migrate.apex")


def test_an_ignored_import_keeps_the_whole_file() -> None:
    source = LOOP.replace(b"from apex import amp", b"from apex import amp  # amp-migrate: ignore")
    assert rewrite_source(source).source == source


def test_a_file_is_native_with_all_the_rules_that_it_needs_or_not_at_all() -> None:
    native, shim = rewrite_source(LOOP), rewrite_source(LOOP, TO_SHIM)
    for code in {*native.edits} - {"AMP001"}:
        assert rewrite_source(LOOP, Settings(ignore=(code,))).source == shim.source, code
        assert rewrite_source(LOOP, Settings(select=("AMP001", code))).source == shim.source, code
    unneeded = [rule.code for rule in all_rules() if rule.code not in native.edits]
    assert rewrite_source(LOOP, Settings(ignore=tuple(unneeded))).source == native.source


def test_a_run_without_some_rules_says_what_that_means(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.py").write_bytes(LOOP)
    main([str(tmp_path), "--check", "--select", "AMP001"])
    noted = " are left on the drop-in" in capsys.readouterr().out
    assert noted is any(rule.code.startswith("AMP1") for rule in all_rules())
    main([str(tmp_path), "--check"])
    assert "are left on the drop-in" not in capsys.readouterr().out
