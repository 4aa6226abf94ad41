"""Run the rules over one file: collect what they report, apply all edits in one pass, give every finding its place."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Mapping, Sequence

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from .apply import apply_edits
from .edits import AnyEdit, Site
from .findings import Finding
from .registry import Rule
from .source_file import SourceFile
from .target import Target


@dataclass(frozen=True)
class Outcome:
    """The new source, how many edits each rule made, and what is left for a person, in source order."""

    source: bytes
    edits: Mapping[str, int]
    findings: tuple[Finding, ...]


class NotRoundTripped(Exception):
    """LibCST doesn't give back the bytes that it parsed, so nothing may be written."""


def run_rules(source: bytes, rules: Sequence[Rule], target: Target, own_apex: str = "") -> Outcome:
    """Return what ``rules`` make of ``source``.

    Raises LibCST's own errors for what isn't Python, and :class:`NotRoundTripped` where bytes would be lost.
    """
    module = cst.parse_module(source)
    if module.bytes != source:
        raise NotRoundTripped("LibCST can't keep the layout of this file byte for byte (is it a lone carriage return?)")
    file = SourceFile(module, target, own_apex, frozenset(rule.code for rule in rules))
    edits: list[AnyEdit] = []
    sites: list[tuple[str, Site]] = []
    made: dict[str, int] = Counter()
    for rule in rules:
        for reported in rule.check(file):
            if isinstance(reported, Site):
                sites.append((rule.code, reported))
            else:
                edits.append(reported)
                made[rule.code] += 1
    new_source = apply_edits(module, edits).bytes if edits else source
    return Outcome(new_source, dict(made), _located(module, sites))


def _located(module: cst.Module, sites: Sequence[tuple[str, Site]]) -> tuple[Finding, ...]:
    if not sites:
        return ()  # positions cost twice the parse
    positions = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
    findings = []
    for code, site in sites:
        start = positions[site.node].start
        message = site.message
        if site.because is not None:
            message += f" (line {positions[site.because].start.line})"
        findings.append(Finding(start.line, start.column + 1, code, message, site.advice, site.kind))
    return tuple(sorted(findings, key=lambda finding: (finding.line, finding.col, finding.code)))
