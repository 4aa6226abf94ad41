"""What isn't an import keeps its bytes, and what can't be rewritten is named and left alone."""

from __future__ import annotations

import sys
import warnings

import pytest

from amp_migrate.codemods.target import NATIVE, SHIM, Target
from amp_migrate.rewrite import Outcome, Settings, rewrite_source
from amp_migrate.rewrite.proofs import ProofFailed, assert_names_defined
from amp_migrate.rewrite.source import MAX_BYTES, may_import_apex

TO_SHIM = Settings(Target(to=SHIM))
TO_NATIVE = Settings(Target(to=NATIVE))

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
    result = rewrite_source(before, TO_SHIM)
    assert result.source == after
    assert result.outcome is Outcome.CHANGED
    assert rewrite_source(after, TO_SHIM).source == after


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
        b"from amp_migrate.apex import amp",
        b"from amp_migrate . \\\n apex import amp",
        b"from amp_migrate import apex",
        b"import amp_migrate.apex as apex",
        b"f('amp_migrate.apex.amp')",
    ],
)
def test_the_byte_search_lets_every_form_of_import_through(source: bytes) -> None:
    assert may_import_apex(source)


@pytest.mark.parametrize(
    "source",
    [
        b"import apexlib",
        b"x = apex",
        b"from apexlib import apex_x",
        b"import os\nx = apex",
        b"import amp_migrate",
        b"from other.apex import x",
        b"import amp_migrate\nx = 'the apex'",
    ],
)
def test_the_byte_search_stops_what_only_mentions_the_word(source: bytes) -> None:
    assert not may_import_apex(source)


ONLY_WORDS = [
    b"# from apex import amp\nx = 1\n",
    b'"""\nfrom apex import amp\n"""\n',
    b"x = 1  # import apex\n",
    b"s = 'import os, apex'\n",
    b"import a.apex\n",
    b"from .apex import amp  # not: import apex\n",
    b"from a import apex\n",
]


@pytest.mark.parametrize("settings", [TO_SHIM, TO_NATIVE], ids=["shim", "native"])
@pytest.mark.parametrize("source", ONLY_WORDS)
def test_apex_in_comments_and_strings_only_is_unchanged_without_libcst(source: bytes, settings: Settings) -> None:
    from amp_migrate.rewrite import parsed

    assert may_import_apex(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(parsed, "rewrite_parsed")  # whatever calls it fails
        assert rewrite_source(source, settings).outcome is Outcome.UNCHANGED


@pytest.mark.parametrize(
    "source",
    [
        b"from amp_migrate.apex import amp\n",
        b"from amp_migrate import apex\n",
        b"import amp_migrate.apex as apex\n",
        b"import importlib\nimportlib.import_module('amp_migrate.apex.amp')\n",
    ],
)
def test_a_file_on_the_drop_in_is_parsed_for_native_and_done_for_the_shim(
    source: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from amp_migrate.rewrite import parsed

    seen = []
    monkeypatch.setattr(parsed, "rewrite_parsed", lambda *given: seen.append(given))
    rewrite_source(source, TO_SHIM)
    assert not seen
    rewrite_source(source, TO_NATIVE)
    assert len(seen) == 1


def test_a_project_module_called_apex_keeps_its_imports() -> None:
    source = b"import importlib\nfrom apex import amp\nimportlib.import_module('apex.amp')\n"
    result = rewrite_source(source, TO_SHIM, own_apex="src/apex.py")
    assert result.outcome is Outcome.NEEDS_PERSON
    assert [each.code for each in result.findings] == ["AMP002", "AMP003"]
    assert all("src/apex.py" in each.message for each in result.findings)


def test_findings_of_a_changed_source_also_have_their_new_lines() -> None:
    result = rewrite_source(b"from apex import amp, transformer\nfrom apex import pyprof\n", TO_SHIM)
    assert [each.line for each in result.findings] == [1, 2]
    assert [each.line for each in result.findings_after] == [2, 3]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the syntax is new in Python 3.12")
def test_new_syntax_is_kept() -> None:
    source = b"import apex\ntype X[T] = list[T]\ndef f[T](x: T): return f'{f'{x}'}'\n"
    assert rewrite_source(source, TO_SHIM).outcome is Outcome.CHANGED


NAMES_KEPT = {
    "undefined before": (b"x\n", b"x\ny = x\n"),
    "a builtin": (b"x = 1\n", b"x = len(__file__)\n"),
    "anything after a star": (b"import a\na\n", b"from b import *\na\n"),
    "a global of another function": (
        b"import a\ndef f():\n    a\n",
        b"def g():\n    global a\n    a = 1\ndef f():\n    a\n",
    ),
    "no longer read": (b"def f():\n    import a\n    a\na = 1\n", b"def f():\n    pass\na = 1\n"),
    "a comprehension": (b"import a\n[a for a in b]\n", b"[a for a in b]\n"),
    "a function that is gone": (b"def f():\n    a = 1\n    a\ndef f(): pass\n", b"a = 1\ndef f():\n    a\n"),
    "declared encoding": (b"# coding: latin-1\nx = '\xe9'\n", b"# coding: latin-1\nx = '\xe9'\nx\n"),
}
NAMES_LOST = {
    "in the module": (b"import a\na.b\n", b"a.b\n", "reads `a`, which nothing defines"),
    "two": (b"import a, b\na.b(b)\n", b"a.b(b)\n", "reads `a`, `b`, which"),
    "in a function": (b"import a\ndef f():\n    a\n", b"def f():\n    a\n", "reads `a`, which"),
    "in a lambda": (b"import a\nf = lambda: a\n", b"f = lambda: a\n", "reads `a`, which"),
    "in a class": (b"import a\nclass A:\n    x = a\n", b"class A:\n    x = a\n", "reads `a`, which"),
    "of a class is none of its methods": (
        b"import a\nclass A:\n    a = 1\n    def f(self): a\n",
        b"class A:\n    a = 1\n    def f(self): a\n",
        "reads `a`, which",
    ),
    "a function's own import": (b"def f():\n    import a\n    a\n", b"def f():\n    a\n", "reads `a`, which"),
    "a function's own, where the module has another": (
        b"a = 1\ndef f():\n    import a\n    a\n",
        b"a = 1\ndef f():\n    a\n",
        "f of the result reads `a` that it no longer binds",
    ),
    "a method's own": (
        b"a = 1\nclass A:\n    def f(self):\n        a = 2\n        a\n",
        b"a = 1\nclass A:\n    def f(self):\n        a\n",
        "A.f of the result reads `a`",
    ),
    "the enclosing function's": (
        b"a = 1\ndef f():\n    a = 2\n    def g(): return a\n",
        b"a = 1\ndef f():\n    def g(): return a\n",
        "f.g of the result reads `a`",
    ),
    "a nested function's own, where the enclosing one has another": (
        b"def f():\n    a = 1\n    def g():\n        a = 2\n        return a\n",
        b"def f():\n    a = 1\n    def g():\n        return a\n",
        "f.g of the result reads `a`",
    ),
    "a builtin's namesake": (
        b"def f():\n    max = 1\n    max\n",
        b"def f():\n    max\n",
        "f of the result reads `max`",
    ),
}


@pytest.mark.parametrize("name", NAMES_KEPT)
def test_a_result_that_reads_what_is_defined_passes(name: str) -> None:
    assert_names_defined(*NAMES_KEPT[name])


@pytest.mark.parametrize("name", NAMES_LOST)
def test_a_result_that_reads_what_nothing_binds_any_more_is_caught(name: str) -> None:
    before, after, reason = NAMES_LOST[name]
    assert_names_defined(before, before)
    with pytest.raises(ProofFailed, match=reason):
        assert_names_defined(before, after)


def test_no_warning_about_a_users_string_reaches_the_user() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rewrite_source(b"from apex import amp\nx = '\\d'\n", TO_SHIM).outcome is Outcome.CHANGED
