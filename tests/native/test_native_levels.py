"""A computed opt level counts by its default, wherever the file keeps that; else a person is asked."""

from __future__ import annotations

import pytest
from runs import NATIVE

from amp_migrate.rewrite import rewrite_source

PROGRAM = """
import argparse
from dataclasses import dataclass, field
from types import SimpleNamespace
import torch
from apex import amp

{before}

def main(cfg, opt_level={default}):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    {inside}
    model, optimizer = amp.initialize(model, optimizer, opt_level={level})
    for x in torch.randn(3, 5, 4):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()

{after}
"""


def is_native(level: str, before: str = "", inside: str = "pass", after: str = "", default: str = "None") -> bool:
    text = PROGRAM.format(level=level, before=before, inside=inside, after=after, default=default)
    result = rewrite_source(text.encode(), NATIVE)
    return b"GradScaler" in result.source


SAFE = {
    "field of a config class": ("cfg.opt_level", {"before": "class CFG:\n    opt_level = 'O1'\n"}),
    "field of a dataclass": ("cfg.opt_level", {"before": "@dataclass\nclass CFG:\n    opt_level: str = 'O1'\n"}),
    "dataclass field()": ("cfg.level", {"before": "@dataclass\nclass C:\n    level: str = field(default='O1')\n"}),
    "dict": ("cfg['amp']['opt_level']", {"after": "main({'amp': {'opt_level': 'O1'}})"}),
    "dict call": ("cfg['opt_level']", {"after": "main(dict(opt_level='O1'))"}),
    "namespace": ("cfg.opt_level", {"after": "main(SimpleNamespace(opt_level='O1'))"}),
    "get with a fallback": ("cfg.get('opt_level', 'O1')", {}),
    "getattr with a fallback": ("getattr(cfg, 'opt_level', 'O1')", {}),
    "stored in an attribute": ("cfg.level", {"inside": "cfg.level = 'O1'"}),
    "default of a parameter": ("opt_level", {"default": "'O1'"}),
    "vars of the options": (
        "vars(cfg)['opt_level']",
        {"before": "parser = argparse.ArgumentParser()\nparser.add_argument('--opt-level', default='O1')\n"},
    ),
    "absl": ("FLAGS.opt_level", {"before": "from absl import flags\nflags.DEFINE_string('opt_level', 'O1', '')\n"}),
    "digit": ("f'O{cfg.level}'", {"before": "class CFG:\n    level = 1\n"}),
}

UNKNOWN = {
    "nothing in the file says it": ("cfg.opt_level", {}),
    "two classes differ": (
        "cfg.opt_level",
        {"before": "class A:\n    opt_level = 'O1'\nclass B:\n    opt_level = 'O2'\n"},
    ),
    "made with another one": (
        "cfg.opt_level",
        {"before": "@dataclass\nclass CFG:\n    opt_level: str = 'O1'\n", "after": "main(CFG(opt_level='O2'))"},
    ),
    "set later": ("cfg.opt_level", {"before": "class CFG:\n    opt_level = 'O1'\n", "inside": "cfg.opt_level = 'O3'"}),
    "a fallback that differs": ("cfg.get('opt_level', 'O1')", {"after": "main({'opt_level': 'O2'})"}),
    "passed by a caller": ("opt_level", {"default": "'O1'", "after": "main(None, opt_level='O2')"}),
}


@pytest.mark.parametrize("level,where", SAFE.values(), ids=list(SAFE))
def test_a_level_counts_by_the_default_that_the_file_shows(level: str, where: dict[str, str]) -> None:
    assert is_native(level, **where)


@pytest.mark.parametrize("level,where", UNKNOWN.values(), ids=list(UNKNOWN))
def test_a_level_that_may_be_another_one_is_for_a_person(level: str, where: dict[str, str]) -> None:
    assert not is_native(level, **where)
