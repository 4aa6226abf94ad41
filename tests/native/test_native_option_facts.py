"""What a program chooses its mode by is known for each call of amp.initialize, with where it comes from."""

from __future__ import annotations

import libcst as cst
import pytest

from amp_migrate.codemods.native.option_facts import OptionFact, Origin
from amp_migrate.codemods.source_file import SourceFile
from amp_migrate.codemods.target import Target

PROGRAM = """
import argparse
from apex import amp

parser = argparse.ArgumentParser()
parser.add_argument("--fp16-opt-level", default="O2")
args = parser.parse_args()

class Trainer:
    def __init__(self, model, optimizer, use_amp="O1", cfg=None):
        model, optimizer = amp.initialize(model, optimizer, {given})
"""

CASES = {
    'opt_level="O1"': OptionFact("opt_level", '"O1"', Origin.LITERAL, "", "O1"),
    "opt_level=use_amp": OptionFact("opt_level", "use_amp", Origin.PARAMETER, "use_amp", "O1"),
    "opt_level=args.fp16_opt_level": OptionFact(
        "opt_level", "args.fp16_opt_level", Origin.OPTION, "fp16_opt_level", "O2"
    ),
    'opt_level=cfg["level"]': OptionFact("opt_level", 'cfg["level"]', Origin.KEY, "level", None),
    "opt_level=cfg.level": OptionFact("opt_level", "cfg.level", Origin.FIELD, "level", None),
    "opt_level=choose()": OptionFact("opt_level", "choose()", Origin.COMPUTED, "", None),
    "loss_scale=128.0": OptionFact("loss_scale", "128.0", Origin.LITERAL, "", None),
    "enabled=cfg.get('amp', 'on')": OptionFact("enabled", "cfg.get('amp', 'on')", Origin.KEY, "amp", "on"),
}


@pytest.mark.parametrize("given,expected", CASES.items(), ids=list(CASES))
def test_a_fact_says_where_the_value_comes_from_and_what_it_is_by_default(given: str, expected: OptionFact) -> None:
    source = SourceFile(cst.parse_module(PROGRAM.format(given=given)), Target())
    assert source.native.options == (expected,)
