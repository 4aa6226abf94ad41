"""Rewriting a source that mentions Apex: compile, run the rules, prove the result."""

from __future__ import annotations

from libcst import CSTValidationError, ParserSyntaxError

from amp_migrate.codemods.engine import NotRoundTripped, run_rules
from amp_migrate.codemods.engine import Outcome as Rewritten
from amp_migrate.codemods.registry import all_rules
from amp_migrate.rewrite.formfeeds import hide_form_feeds, show_form_feeds
from amp_migrate.rewrite.proofs import ProofFailed, assert_compiles, assert_decodes, assert_stable
from amp_migrate.rewrite.results import Outcome, Result, Settings


def rewrite_parsed(source: bytes, settings: Settings, own_apex: str) -> Result:
    """Return what the rules make of ``source``; whatever goes wrong becomes a failed result that says so."""
    try:
        assert_decodes(source)
        # Python's own compiler goes first: it says best what is wrong, and LibCST's parser overflows the stack
        # (and ends the process) on nesting that this one refuses.
        assert_compiles(source)
        new = _run(source, own_apex)
        if new.source == source:
            outcome = Outcome.NEEDS_PERSON if new.findings else Outcome.UNCHANGED
            return Result(outcome, source, findings=new.findings, findings_after=new.findings)
        assert_compiles(new.source, "the result ")
        again = _run(new.source, own_apex)
        assert_stable(new.source, again.source)
        return Result(Outcome.CHANGED, new.source, new.edits, new.findings, again.findings)
    except ProofFailed as error:
        return Result(Outcome.FAILED, source, reason=str(error))
    except ParserSyntaxError as error:
        return Result(Outcome.FAILED, source, reason=f"line {error.raw_line}: LibCST can't parse this")
    except (NotRoundTripped, CSTValidationError, SyntaxError, ValueError) as error:
        return Result(Outcome.FAILED, source, reason=str(error))
    except RecursionError:
        return Result(Outcome.FAILED, source, reason="nested too deeply to be parsed")


def _run(source: bytes, own_apex: str) -> Rewritten:
    hidden, form_feeds = hide_form_feeds(source)
    new = run_rules(hidden, all_rules(), own_apex)
    if not form_feeds:
        return new
    return Rewritten(show_form_feeds(hidden, new.source, form_feeds), new.edits, new.findings)
