"""What isn't an import keeps its bytes, and what can't be rewritten is named and left alone."""

from __future__ import annotations

import sys

import pytest

from amp_migrate.rewrite import Outcome, Settings, rewrite_source
from amp_migrate.rewrite.source import MAX_BYTES, may_import_apex

KEPT = {
    "byte-order mark": (b"\xef\xbb\xbffrom apex import amp\n", b"\xef\xbb\xbffrom amp_migrate.apex import amp\n"),
    "latin-1 with cookie": (
        b"# -*- coding: latin-1 -*-\n# caf\xe9\nfrom apex import amp  # \xe9\n",
        b"# -*- coding: latin-1 -*-\n# caf\xe9\nfrom amp_migrate.apex import amp  # \xe9\n",
    ),
    "utf-8": ("# ü\nfrom apex import amp\n".encode(), "# ü\nfrom amp_migrate.apex import amp\n".encode()),
    "CRLF": (b"from apex import amp\r\nx = 1\r\n", b"from amp_migrate.apex import amp\r\nx = 1\r\n"),
    "CRLF where a line is split": (
        b"x = 1\r\nfrom apex import amp, transformer\r\n",
        b"x = 1\r\nfrom amp_migrate.apex import amp\r\nfrom apex import transformer\r\n",
    ),
    "mixed line ends": (
        b"a = 1\nfrom apex import amp, transformer\r\nb = 2\n\r\n",
        b"a = 1\nfrom amp_migrate.apex import amp\r\nfrom apex import transformer\r\nb = 2\n\r\n",
    ),
    "tabs": (b"if x:\n\tfrom apex import amp\n", b"if x:\n\tfrom amp_migrate.apex import amp\n"),
    "no final line end": (
        b"from apex import amp, transformer",
        b"from amp_migrate.apex import amp\nfrom apex import transformer",
    ),
    "trailing spaces": (
        b"from apex import amp  \n   \nx  =  1 \n",
        b"from amp_migrate.apex import amp  \n   \nx  =  1 \n",
    ),
    "form feed on a line of its own": (
        b"x = 1\n\x0c\nimport apex\n",
        b"x = 1\n\x0c\nimport amp_migrate.apex as apex\n",
    ),
    "form feed before a statement": (
        b"\x0cx = 1\n\x0cfrom apex import amp, transformer\n \x0c\x0cy = 2\n",
        b"\x0cx = 1\n\x0cfrom amp_migrate.apex import amp\nfrom apex import transformer\n \x0c\x0cy = 2\n",
    ),
    "form feed in a string": (
        b'"""\n\x0cpage\n"""\nimport apex\n',
        b'"""\n\x0cpage\n"""\nimport amp_migrate.apex as apex\n',
    ),
    "line end in a string": (
        b'x = """a\r\nb\n"""\r\nimport apex\r\n',
        b'x = """a\r\nb\n"""\r\nimport amp_migrate.apex as apex\r\n',
    ),
    "backslash before the name": (b"import os, \\\n  apex\n", b"import os, \\\n  amp_migrate.apex as apex\n"),
    "wrong escape": (b"x = '\\d'\nimport apex\n", b"x = '\\d'\nimport amp_migrate.apex as apex\n"),
}


@pytest.mark.parametrize("name", KEPT)
def test_only_the_import_changes(name: str) -> None:
    before, after = KEPT[name]
    result = rewrite_source(before)
    assert result.source == after
    assert result.outcome is Outcome.CHANGED
    assert rewrite_source(after).source == after


HARD = {
    "syntax error": (b"import apex\ndef f(:\n", "line 2"),
    "Python 2 print": (b'import apex\nprint "x"\n', "Python 2"),
    "inconsistent tabs": (b"if x:\n\timport apex\n        y = 1\n", "compile"),
    "not UTF-8 and no cookie": (b"x = 1\n# caf\xe9\nimport apex\n", "line 2 isn't utf-8"),
    "byte-order mark against cookie": (b"\xef\xbb\xbf# coding: latin-1\nimport apex\n", "decoded"),
    "not in the declared encoding": (b"# coding: ascii\nx = '\xe9'\nimport apex\n", "line 2 isn't ascii"),
    "unknown encoding": (b"# coding: klingon\nimport apex\n", "klingon"),
    "NUL byte": (b"import apex\nx = 1\0\n", "null byte"),
    "return outside a function": (b"import apex\nreturn apex\n", "return"),
    "nested parentheses": (b"import apex\nx = " + b"(" * 5000 + b"1" + b")" * 5000 + b"\n", "nested"),
    "long chain of calls": (b"import apex\nx = a" + b".b()" * 700 + b"\n", "nested too deeply"),
    "very long chain of calls": (b"import apex\nx = a" + b".b()" * 50_000 + b"\n", "nested too deeply"),
    "old Macintosh line ends": (b"import apex\rx = 1\r", "byte for byte"),
}


@pytest.mark.parametrize("name", HARD)
def test_what_cannot_be_parsed_fails_with_a_reason_and_keeps_its_bytes(name: str) -> None:
    source, reason = HARD[name]
    result = rewrite_source(source)
    assert result.outcome is Outcome.FAILED
    assert reason in result.reason
    assert "\n" not in result.reason
    assert result.source == source


@pytest.mark.parametrize("source", [b"", b"\n", b"x = 1", b"def f(:\n", b"\0", b"\xff", b"\x0c", b"print apex\n"])
def test_what_imports_no_apex_is_unchanged_whatever_it_is(source: bytes) -> None:
    result = rewrite_source(source)
    assert (result.outcome, result.source) == (Outcome.UNCHANGED, source)


def test_a_source_too_big_to_parse_is_skipped_with_a_reason() -> None:
    source = b"from apex import amp\n" + b"x = [1, 2, 3]\n" * (10_000_000 // 14)
    result = rewrite_source(source)
    assert result.outcome is Outcome.SKIPPED
    assert "too big" in result.reason
    assert result.source == source


def test_a_big_source_without_apex_is_simply_unchanged() -> None:
    assert rewrite_source(b"import apexlib\n" * (MAX_BYTES // 10)).outcome is Outcome.UNCHANGED


@pytest.mark.parametrize(
    "source",
    [
        b"from apex import x",
        b"from\tapex.amp import x",
        b"from \\\n  apex import x",
        b"from \\\r\n  apex import x",
        b"import os, \\\r\n apex",
        b"import os,\\\n\\\napex",
        b"x=1;import apex",
        b"import a,b,apex.amp as c",
        b"f('apex')",
        b'f("""apex.amp""")',
        b"f(r'apex.amp')",
        b"f('.amp', 'apex')",
        b"from a import b; import apex",
    ],
)
def test_the_byte_search_lets_every_form_of_import_through(source: bytes) -> None:
    assert may_import_apex(source)


@pytest.mark.parametrize(
    "source", [b"import apexlib", b"x = apex", b"from apexlib import apex_x", b"import os\nx = apex"]
)
def test_the_byte_search_stops_what_only_mentions_the_word(source: bytes) -> None:
    assert not may_import_apex(source)


def test_a_project_module_called_apex_keeps_its_imports() -> None:
    source = b"import importlib\nfrom apex import amp\nimportlib.import_module('apex.amp')\n"
    result = rewrite_source(source, own_apex="src/apex.py")
    assert result.outcome is Outcome.NEEDS_PERSON
    assert [each.code for each in result.findings] == ["AMP002", "AMP003"]
    assert all("src/apex.py" in each.message for each in result.findings)


def test_findings_of_a_changed_source_also_have_their_new_lines() -> None:
    result = rewrite_source(b"from apex import amp, transformer\nfrom apex import pyprof\n")
    assert [each.line for each in result.findings] == [1, 2]
    assert [each.line for each in result.findings_after] == [2, 3]


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(ValueError, match="native"):
        Settings(target="native")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the syntax is new in Python 3.12")
def test_new_syntax_is_kept() -> None:
    source = b"import apex\ntype X[T] = list[T]\ndef f[T](x: T): return f'{f'{x}'}'\n"
    assert rewrite_source(source).outcome is Outcome.CHANGED
