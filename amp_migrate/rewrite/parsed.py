"""Rewriting a source that uses Apex: run the rules, prove the result."""

from __future__ import annotations

from dataclasses import replace
from difflib import SequenceMatcher
from typing import Sequence

from libcst import CSTValidationError, ParserSyntaxError

from amp_migrate.codemods.engine import NotRoundTripped, run_rules
from amp_migrate.codemods.engine import Outcome as Rewritten
from amp_migrate.codemods.registry import Rule, all_rules
from amp_migrate.codemods.target import NATIVE, SHIM, Target
from amp_migrate.rewrite.choice import chosen_rules, missing_parts
from amp_migrate.rewrite.formfeeds import hide_form_feeds, show_form_feeds
from amp_migrate.rewrite.places import findings_after
from amp_migrate.rewrite.proofs import ProofFailed, assert_compiles, assert_names_defined, assert_stable
from amp_migrate.rewrite.results import Outcome, Result, Settings
from amp_migrate.rewrite.suppress import Ignored, is_ignored, suppressions


def rewrite_parsed(source: bytes, settings: Settings, own_apex: str) -> Result:
    """Return what the rules make of ``source``, which compiles; what goes wrong becomes a failed result that says so.

    Lines with ``# amp-migrate: ignore`` keep out of it: what is found there isn't told, and a rule that would change
    such a line, and that is ignored there, isn't run on this source at all. Its edits belong together, so the rest of
    them can't be trusted without the one that was refused. The rules that make a source native belong together as well:
    one that needs one of them that isn't run, for this reason or because it wasn't chosen, goes to the drop-in.
    """
    try:
        new = _run(source, settings, own_apex)
        if new.source == source:
            outcome = Outcome.NEEDS_PERSON if new.findings else Outcome.UNCHANGED
            return Result(outcome, source, findings=new.findings, findings_after=new.findings)
        assert_compiles(new.source, "the result ")
        assert_names_defined(source, new.source)
        again = _run(new.source, settings, own_apex)
        assert_stable(new.source, again.source)
        placed = findings_after(source, new.source, new.findings, again.findings)
        return Result(Outcome.CHANGED, new.source, new.edits, new.findings, placed)
    except ProofFailed as error:
        return Result(Outcome.FAILED, source, reason=str(error))
    except ParserSyntaxError as error:
        return Result(Outcome.FAILED, source, reason=f"line {error.raw_line}: LibCST can't parse this")
    except (NotRoundTripped, CSTValidationError, SyntaxError, ValueError) as error:
        return Result(Outcome.FAILED, source, reason=str(error))
    except RecursionError:
        return Result(Outcome.FAILED, source, reason="nested too deeply to be parsed")


def _run(source: bytes, settings: Settings, own_apex: str) -> Rewritten:
    hidden, form_feeds = hide_form_feeds(source)
    ignored = suppressions(source)
    rules, target = _trusted(hidden, settings, ignored, own_apex)
    new = run_rules(hidden, rules, target, own_apex)
    if ignored:
        told = tuple(each for each in new.findings if not is_ignored(ignored, each.line, each.code))
        new = replace(new, findings=told)
    return replace(new, source=show_form_feeds(hidden, new.source, form_feeds)) if form_feeds else new


def _trusted(source: bytes, settings: Settings, ignored: Ignored, own_apex: str) -> tuple[Sequence[Rule], Target]:
    """Return the rules to run on ``source``, and what they can be trusted to rewrite it to."""
    rules, target = chosen_rules(settings.select, settings.ignore), settings.target
    trusted = [rule for rule in rules if not _is_refused(rule, ignored, source, target, own_apex)]
    missing = missing_parts(trusted) if target.to == NATIVE else frozenset()
    if missing and not missing.isdisjoint(run_rules(source, all_rules(), target, own_apex).edits):
        target = replace(target, to=SHIM)
        trusted = [rule for rule in rules if not _is_refused(rule, ignored, source, target, own_apex)]
    return trusted, target


def _is_refused(rule: Rule, ignored: Ignored, source: bytes, target: Target, own_apex: str) -> bool:
    """Return whether ``rule`` would change a line on which it is ignored."""
    lines = [line for line in ignored if is_ignored(ignored, line, rule.code)]
    if not lines:
        return False
    alone = run_rules(source, [rule], target, own_apex)
    return bool(alone.edits) and not _changed_lines(source, alone.source).isdisjoint(lines)


def _changed_lines(before: bytes, after: bytes) -> frozenset[int]:
    """Return the lines of ``before``, counted from 1, that aren't in ``after`` as they were."""
    old, new = _lines(before), _lines(after)
    opcodes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return frozenset(number + 1 for tag, start, end, _, _ in opcodes if tag != "equal" for number in range(start, end))


def _lines(source: bytes) -> Sequence[bytes]:
    return source.splitlines(keepends=True)
