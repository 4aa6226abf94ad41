"""The engine, the registry, the table of the drop-in, and what names stand for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import libcst as cst
import pytest

from amp_migrate.codemods import dropin, registry
from amp_migrate.codemods.apply import apply_edits
from amp_migrate.codemods.dropin import instead_of, is_served, path_below_apex
from amp_migrate.codemods.edits import Edit
from amp_migrate.codemods.findings import Level
from amp_migrate.codemods.scopes import Names, names_of
from amp_migrate.codemods.target import SHIM, Target
from amp_migrate.rewrite import Outcome, Settings, rewrite_source
from amp_migrate.rewrite.formfeeds import hide_form_feeds, show_form_feeds
from amp_migrate.rewrite.proofs import ProofFailed, assert_compiles, assert_stable

ROOT = Path(__file__).resolve().parents[2]
TO_SHIM = Settings(Target(to=SHIM))


def test_the_codemods_and_the_rewriter_never_import_torch() -> None:
    code = (
        "import sys\nfrom amp_migrate.rewrite import rewrite_source\n"
        "from amp_migrate.codemods.registry import all_rules\n"
        "all_rules()\nrewrite_source(b'from apex import amp, transformer')\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("folder", ["codemods", "amp_migrate/rewrite"])
def test_no_file_grows_past_400_lines(folder: str) -> None:
    for file in (ROOT / folder).glob("*.py"):
        assert len(file.read_text().splitlines()) < 400, file


def test_every_rule_has_a_code_a_summary_and_a_page() -> None:
    for rule in registry.all_rules():
        assert re.fullmatch(r"AMP\d{3}", rule.code)
        assert rule.summary
        assert "Why:" in rule.page
        assert all(line == line.rstrip() for line in registry.explain(rule).splitlines())


def test_a_code_can_be_given_only_once() -> None:
    with pytest.raises(ValueError, match="AMP001"):
        registry.rule("AMP001", "again", Level.SAFE)(lambda source: iter(()))


def test_every_level_says_what_it_means() -> None:
    assert all(level.meaning for level in Level)


def test_the_longest_row_of_the_table_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropin, "SERVED", {"amp": True, "contrib": True, "contrib.sparsity": False})
    assert is_served("")
    assert is_served("amp._amp_state.x")
    assert is_served("contrib.focal_loss")
    assert not is_served("contrib.sparsity.ASP")
    assert not is_served("amplifier")
    assert not is_served("RNN")


def test_a_new_row_is_all_it_takes_to_serve_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    source = b"from apex import amp, transformer\nimport apex\napex.transformer.SyncBatchNorm()\napex.contrib.x\n"
    monkeypatch.setattr(
        dropin, "SERVED", {"amp": True, "transformer": True, "contrib": True, "contrib.sparsity": False}
    )
    result = rewrite_source(source, TO_SHIM)
    assert result.source.startswith(b"from amp_migrate.apex import amp, transformer\nimport amp_migrate.apex as apex\n")
    held_back = rewrite_source(b"from apex import contrib\ncontrib.sparsity.ASP\n", TO_SHIM)
    assert held_back.outcome is Outcome.NEEDS_PERSON


def test_advice_names_what_torch_has() -> None:
    assert instead_of("contrib.fmha.fmha") == "torch.nn.functional.scaled_dot_product_attention"
    assert instead_of("contrib") is None
    assert path_below_apex("apex") == ""
    assert path_below_apex("apex.amp.handle") == "amp.handle"
    assert path_below_apex("my.apex") is None


def statement(code: str) -> cst.BaseSmallStatement:
    line = cst.parse_statement(code)
    assert isinstance(line, cst.SimpleStatementLine)
    return line.body[0]


def small_statements(module: cst.Module) -> Iterator[cst.BaseSmallStatement]:
    for line in module.body:
        assert isinstance(line, cst.SimpleStatementLine)
        yield from line.body


@pytest.mark.parametrize(
    ("before", "place", "after"),
    [
        ("a\nb\nc\n", 1, "a\nx\ny\nc\n"),
        ("# one\nb  # two\n", 0, "# one\nx  # two\ny\n"),
        ("a; b; c\n", 0, "x; y; b; c\n"),
        ("a; b;\n", 1, "a; x; y;\n"),
        ("a ;b\n", 0, "x; y ;b\n"),
    ],
)
def test_a_statement_becomes_two_on_lines_of_their_own_or_joined(before: str, place: int, after: str) -> None:
    module = cst.parse_module(before)
    node = list(small_statements(module))[place]
    assert apply_edits(module, [Edit(node, (statement("x"), statement("y")))]).code == after


@pytest.mark.parametrize(
    ("before", "place", "after"), [("a\nb\nc\n", 1, "a\nc\n"), ("a; b; c\n", 2, "a; b\n"), ("a; b\n", 0, "b\n")]
)
def test_a_statement_can_be_removed(before: str, place: int, after: str) -> None:
    module = cst.parse_module(before)
    assert apply_edits(module, [Edit(list(small_statements(module))[place], ())]).code == after


def test_what_no_edit_touches_is_the_same_node_as_before() -> None:
    module = cst.parse_module("a\ndef f():\n    b\n    c\n")
    new = apply_edits(
        module, [Edit(list(small_statements(module.with_changes(body=module.body[:1])))[0], (statement("x"),))]
    )
    assert new.body[1] is module.body[1]


def test_edits_that_overlap_are_refused() -> None:
    module = cst.parse_module("f(x)\n")
    expression = next(small_statements(module))
    assert isinstance(expression, cst.Expr)
    inner = Edit(expression.value, (cst.Name("y"),))
    with pytest.raises(ValueError, match="inside"):
        apply_edits(module, [Edit(expression, (statement("z"),)), inner])
    with pytest.raises(ValueError, match="same node"):
        apply_edits(module, [inner, inner])
    with pytest.raises(ValueError, match="exactly one"):
        apply_edits(module, [Edit(expression.value, ())])


def uses(code: str, name: str = "apex") -> list[str]:
    """Return the kind of scope that owns ``name`` at each of its uses, in source order."""
    names: Names = names_of(cst.parse_module(code))
    lines = sorted(names.uses.get(name, ()), key=lambda use: use.attributes)
    return [names.owner(name, use.scope).kind for use in lines]


@pytest.mark.parametrize(
    ("code", "owners"),
    [
        ("import apex\napex.a", ["module"]),
        ("import apex\ndef f(): apex.a", ["module"]),
        ("import apex\ndef f(apex): apex.a", ["function"]),
        ("import apex\ndef f(x=apex.a, apex=1): apex.b", ["module", "function"]),
        ("import apex\nf = lambda apex: apex.a", ["function"]),
        ("import apex\ndef f():\n    for apex in x: apex.a", ["function"]),
        ("import apex\ndef f():\n    with x as (apex, y): apex.a", ["function"]),
        ("import apex\ndef f():\n    try: pass\n    except E as apex: apex.a", ["function"]),
        ("import apex\ndef f():\n    if (apex := 1): apex.a", ["function"]),
        ("import apex\ndef f():\n    [(apex := 1) for x in y]\n    apex.a", ["function"]),
        ("import apex\ndef f():\n    global apex\n    apex = 1\n    apex.a", ["module"]),
        (
            "def f():\n    import apex\n    def g():\n        nonlocal apex\n        apex = 2\n        apex.a",
            ["function"],
        ),
        ("import apex\nclass A:\n    apex = 1\n    apex.a\n    def f(self): apex.b", ["class", "module"]),
        ("import apex\n[apex.b for apex in apex.a]", ["module", "comprehension"]),
        ("import apex\n{apex.b: 1 for x in y for apex in apex.c}", ["comprehension", "comprehension"]),
        ("import apex\ndef f():\n    del apex\n    apex.a", ["function"]),
        ("import apex\ndef f():\n    apex: int = 1\n    apex.a", ["function"]),
        ("import apex\ndef f():\n    apex += 1\n    apex.a", ["function"]),
        ("import apex\ndef f():\n    match x:\n        case [apex, *_]: apex.a", ["function"]),
        ("import apex\ndef f():\n    match x:\n        case {'k': 1, **apex}: apex.a", ["function"]),
        ("import apex\ndef f():\n    def apex(): pass\n    apex.a", ["function"]),
        ("import apex\ndef f():\n    class apex: pass\n    apex.a", ["function"]),
        ("import apex\n@apex.a\ndef f(apex): pass", ["module"]),
        ("import apex\nx.apex.a\nf(apex=1)\napex.a = 1", ["module"]),
        ("import apex\nasync def f():\n    async for apex in x: apex.a", ["function"]),
    ],
)
def test_a_name_belongs_to_the_scope_that_python_says(code: str, owners: list[str]) -> None:
    assert uses(code) == owners


def test_a_source_that_does_not_compile_is_caught() -> None:
    with pytest.raises(ProofFailed, match="the result doesn't compile"):
        assert_compiles(b"def f(:\n", "the result ")


def test_a_result_that_a_second_run_would_change_is_caught() -> None:
    assert_stable(b"a", b"a")
    with pytest.raises(ProofFailed, match="second run"):
        assert_stable(b"a", b"b")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("def f(:\n", "the result doesn't compile"),
        ("from apex import amp\n", "a second run"),
        ("print(nothing)\n", "the result reads `nothing`"),
    ],
)
def test_a_rule_that_goes_wrong_fails_the_file_and_keeps_its_bytes(
    monkeypatch: pytest.MonkeyPatch, wrong: str, reason: str
) -> None:
    """Whatever a rule does, what doesn't compile or isn't stable is never returned as a change."""
    from amp_migrate.codemods.engine import Outcome as Rewritten
    from amp_migrate.rewrite import parsed

    monkeypatch.setattr(
        parsed,
        "run_rules",
        lambda source, rules, target, own_apex: Rewritten(wrong.encode() + source, {"AMP001": 1}, ()),
    )
    result = rewrite_source(b"import apex\n", TO_SHIM)
    assert result.outcome is Outcome.FAILED
    assert result.reason.startswith(reason)
    assert result.source == b"import apex\n"


def test_form_feeds_come_back_to_their_lines() -> None:
    source = b"a\n\x0cb\n  \x0c  c\r\n\x0c\nd\n"
    hidden, taken = hide_form_feeds(source)
    assert b"\x0c" not in hidden
    assert show_form_feeds(hidden, hidden, taken) == source
    assert show_form_feeds(hidden, b"new\n" + hidden, taken) == b"new\n" + source
