"""``F.binary_cross_entropy`` under O1: fine in float32, refused in float16, as under Apex."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from amp_migrate.apex.amp import lists
from amp_migrate.apex.amp._patches import patches

from . import needs_float16
from .scenarios import mlp, sgd, wave

pytestmark = needs_float16
TARGET = torch.tensor([0.0, 1.0, 1.0, 0.0])


def start(amp, level="O1"):
    model = mlp()
    return amp.initialize(model, sgd(model), opt_level=level, verbosity=0)


def probability():
    a, b = wave(4), wave(4, phase=1.0)
    return (a.float().sigmoid() * b.float().sigmoid()).sqrt()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_float32_inputs_give_the_value_without_amp(amp, reduction, weighted) -> None:  # S15
    options = {"reduction": reduction, "weight": wave(4).abs() if weighted else None}
    expected = F.binary_cross_entropy(probability(), TARGET, **options)
    start(amp)
    found = F.binary_cross_entropy(probability(), TARGET, **options)
    assert found.dtype == torch.float32 and torch.equal(found, expected)
    assert torch.equal(torch.nn.BCELoss(**options)(probability(), TARGET), expected)


def test_its_gradient_is_the_one_without_amp(amp) -> None:
    gradients = []
    for on in (False, True):
        if on:
            start(amp)
        p = probability().requires_grad_()
        F.binary_cross_entropy(p, TARGET).backward()
        gradients.append(p.grad)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("loss", [F.binary_cross_entropy, torch.nn.BCELoss()])
def test_float16_inputs_are_refused_with_apex_wording_and_a_way_out(amp, loss) -> None:  # S15, S16
    start(amp)
    with pytest.raises(
        NotImplementedError, match="amp does not work out-of-the-box with `F.binary_cross_entropy`"
    ) as error:
        loss(probability().half(), TARGET)
    assert "BCEWithLogitsLoss" in str(error.value) and "allow_banned=True" in str(error.value)


def test_it_is_refused_inside_a_model_too(amp) -> None:
    class Judge(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(4, 4)

        def forward(self, x):
            return F.binary_cross_entropy(self.net(x).sigmoid(), TARGET)

    model = Judge()
    amp.initialize(model, sgd(model), opt_level="O1", verbosity=0)
    with pytest.raises(NotImplementedError):
        model(wave(4))


def test_allow_banned_casts_to_float32_instead(amp) -> None:  # S16
    expected = F.binary_cross_entropy(probability().half().float(), TARGET)
    amp.init(allow_banned=True)
    start(amp)
    found = F.binary_cross_entropy(probability().half(), TARGET)
    assert found.dtype == torch.float32 and torch.equal(found, expected)


def test_emptying_the_banned_list_casts_to_float32_instead(amp, monkeypatch) -> None:
    monkeypatch.setattr(lists.functional_overrides, "BANNED_FUNCS", [])
    start(amp)
    assert F.binary_cross_entropy(probability().half(), TARGET).dtype == torch.float32


@pytest.mark.parametrize("level", ["O0", "O2", "O3"])
def test_other_levels_leave_it_alone(amp, level) -> None:
    start(amp, level)
    assert F.binary_cross_entropy(probability().half(), TARGET.half()).dtype == torch.float16


def test_it_is_refused_nowhere_once_casts_are_off(amp) -> None:
    start(amp)
    with amp.disable_casts():
        assert F.binary_cross_entropy(probability().half(), TARGET.half()).dtype == torch.float16
    patches.undo_all()
    assert F.binary_cross_entropy(probability().half(), TARGET.half()).dtype == torch.float16
    with torch.autocast("cpu", dtype=torch.float16):  # torch's own rule is back
        assert F.binary_cross_entropy(probability().half(), TARGET.half()).dtype == torch.float32


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="this torch has no torch.compile")
def test_it_compiles_without_a_graph_break(amp) -> None:
    expected = F.binary_cross_entropy(probability(), TARGET)
    start(amp)
    torch._dynamo.reset()
    compiled = torch.compile(lambda p: F.binary_cross_entropy(p, TARGET), backend="eager", fullgraph=True)
    assert torch.equal(compiled(probability()), expected)
    torch._dynamo.reset()
