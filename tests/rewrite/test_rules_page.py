"""The page of the rules says what ``--explain`` says."""

from __future__ import annotations

from make_rules_page import PAGE

from amp_migrate.codemods.registry import all_rules, explain, rules_page


def test_the_page_is_made_from_the_docstrings() -> None:
    assert PAGE.read_text(encoding="utf-8") == rules_page(), "run python tests/rewrite/make_rules_page.py"


def test_every_rule_says_why_and_shows_what_it_does() -> None:
    for rule in all_rules():
        assert rule.page.startswith("Why:"), rule.code
        is_note = rule.level.value != "safe"
        assert is_note or ("Before:" in rule.page and "After:" in rule.page and "Safe" in rule.page), rule.code
        assert rule.code in explain(rule)
