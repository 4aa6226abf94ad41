"""``amp.initialize``: what comes back, what is refused, and that nothing is left behind."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from amp_migrate.apex import _native
from amp_migrate.apex.amp._patches import patches

from . import needs_float16
from .scenarios import adam, batch, caught, mlp, poison, sgd, tensors, train

LEVELS = ("O0", "O1", "O2", "O3")


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("level", LEVELS)
def test_without_optimizer_a_module_comes_back_enabled_or_not(amp, enabled, level) -> None:  # S01
    model = mlp()
    assert amp.initialize(model, enabled=enabled, opt_level=level, verbosity=0) is model


@pytest.mark.parametrize("enabled", [True, False])
def test_with_an_optimizer_a_pair_comes_back_enabled_or_not(amp, enabled) -> None:  # S01
    model = mlp()
    optimizer = sgd(model)
    result = amp.initialize(model, optimizer, enabled=enabled, verbosity=0)
    assert type(result) is tuple
    assert result[0] is model and result[1] is optimizer


@pytest.mark.parametrize("models_in_list", [True, False])
@pytest.mark.parametrize("optimizers_in_list", [True, False])
@pytest.mark.parametrize("enabled", [True, False])
def test_each_side_is_a_list_if_it_was_one(amp, models_in_list, optimizers_in_list, enabled) -> None:  # S02
    model = mlp()
    optimizer = sgd(model)
    models, optimizers = amp.initialize(
        [model] if models_in_list else model,
        [optimizer] if optimizers_in_list else optimizer,
        enabled=enabled,
        verbosity=0,
    )
    assert models == [model] if models_in_list else models is model
    assert optimizers == [optimizer] if optimizers_in_list else optimizers is optimizer


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_initialize_per_trial_gives_the_same_curve(amp, level) -> None:  # S04
    curves = []
    for _ in range(3):
        model = mlp()
        model, optimizer = amp.initialize(model, sgd(model), opt_level=level, verbosity=0)
        curves.append(train(amp, model, optimizer, 4, bad=(1,)))
    assert curves[0] == curves[1] == curves[2]
    assert curves[0][-1]["params"] != curves[0][0]["params"]


def test_scale_loss_before_initialize_says_to_initialize(amp) -> None:  # S05, S06
    model = mlp()
    with pytest.raises(RuntimeError, match="Amp state has not been initialized") as error:
        amp.scale_loss(torch.ones(()), sgd(model)).__enter__()
    assert "amp.initialize" in str(error.value)


def test_an_optimizer_is_initialized_once(amp) -> None:  # S05
    model = mlp()
    optimizer = sgd(model)
    amp.initialize(model, optimizer, verbosity=0)
    with pytest.raises(RuntimeError, match="should only be passed through amp.initialize once"):
        amp.initialize(model, optimizer, verbosity=0)


def test_the_state_is_one_object_on_every_import_path(amp) -> None:  # S07
    handle = importlib.import_module("amp_migrate.apex.amp.handle")
    frontend = importlib.import_module("amp_migrate.apex.amp.frontend")
    package = importlib.import_module("amp_migrate.apex")
    module = sys.modules["amp_migrate.apex.amp._amp_state"]
    assert package.amp is amp
    assert amp._amp_state is module._amp_state is handle._amp_state is frontend._amp_state
    assert amp._amp_state._amp_state is amp._amp_state
    model = mlp()
    model, optimizer = frontend.initialize(model, sgd(model), opt_level="O0", loss_scale=4.0, verbosity=0)
    with handle.scale_loss(torch.ones(()), optimizer) as scaled:
        assert scaled.item() == 4.0


@pytest.mark.parametrize("level", ["01", "o1", "O6", "", None, 1])
def test_an_unknown_level_is_refused_with_a_hint(amp, level) -> None:  # S13
    model = mlp()
    with pytest.raises(RuntimeError, match=r"(?s)Unexpected optimization level.*letter O"):
        amp.initialize(model, sgd(model), opt_level=level, verbosity=0)


@pytest.mark.parametrize("level", LEVELS)
def test_a_half_model_is_refused_with_apex_advice(amp, level) -> None:  # S56
    model = mlp().half()
    with pytest.raises(RuntimeError, match=r"you do not need to call \.half\(\)"):
        amp.initialize(model, sgd(model), opt_level=level, verbosity=0)


@needs_float16
def test_O3_trains_half_gradients(amp) -> None:  # S56
    model = mlp()
    model, optimizer = amp.initialize(model, sgd(model), opt_level="O3", loss_scale="dynamic", verbosity=0)
    before = tensors(model.parameters())
    train(amp, model, optimizer, 2)
    assert {p.grad.dtype for p in model.parameters()} == {torch.float16}
    assert tensors(model.parameters()) != before


@pytest.mark.parametrize("level", LEVELS)
def test_the_very_same_objects_come_back(amp, level) -> None:  # S58
    model = mlp(batchnorm=True)
    optimizer = adam(model)
    parameters = list(model.parameters())
    group = optimizer.param_groups[0]
    model2, optimizer2 = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    assert model2 is model and optimizer2 is optimizer
    assert isinstance(model, torch.nn.Sequential) and model.__class__ is torch.nn.Sequential
    assert isinstance(optimizer, torch.optim.Adam) and type(optimizer) is torch.optim.Adam
    assert all(a is b for a, b in zip(parameters, model.parameters()))
    assert optimizer.param_groups[0] is group


def test_the_stash_marks_initialized_optimizers_only(amp) -> None:  # S35
    model = mlp()
    mine, other = sgd(model), sgd(model)
    assert not hasattr(mine, "_amp_stash")
    amp.initialize(model, mine, verbosity=0)
    assert hasattr(mine, "_amp_stash") and not hasattr(other, "_amp_stash")


def test_cuda_is_not_touched() -> None:  # S40, S47
    code = (
        "import torch, amp_migrate.apex.amp as amp\n"
        "for level in ('O0', 'O1', 'O2', 'O3'):\n"
        "    m = torch.nn.Linear(2, 2); o = torch.optim.SGD(m.parameters(), 0.1)\n"
        "    m, o = amp.initialize(m, o, opt_level=level, loss_scale=2.0, verbosity=0)\n"
        "    with amp.scale_loss(m(torch.ones(1, 2)).float().sum(), o) as s: s.backward()\n"
        "    o.step()\n"
        "    assert not torch.cuda.is_initialized()\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, env=env)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("level", LEVELS)
def test_inference_needs_no_optimizer(amp, level, dtype) -> None:  # S63
    expected = mlp()(batch(0)[0])
    model = amp.initialize(mlp().eval(), opt_level=level, cast_model_outputs=dtype, verbosity=0)
    with torch.no_grad():
        result = model(batch(0)[0])
    assert result.dtype == dtype
    assert torch.allclose(result.float(), expected, atol=1e-2)


@needs_float16
@pytest.mark.parametrize(
    "level, dtype", [("O0", torch.float32), ("O1", torch.float16), ("O2", torch.float32), ("O3", torch.float32)]
)
def test_the_output_dtype_of_each_level(amp, level, dtype) -> None:  # S63
    model = amp.initialize(mlp(), opt_level=level, verbosity=0)
    assert model(batch(0)[0]).dtype == dtype


# ---------------------------------------------------------------------------------- nothing is left behind


def _everything(model: Any, *optimizers: Any) -> dict[str, Any]:
    """What initialize could have changed. Objects are compared by identity through ``_same``."""
    from amp_migrate.apex.amp._amp_state import _amp_state

    return {
        "class": type(model),
        "model": dict(vars(model)),
        "forward": model.forward.__func__,
        "modules": [(m, dict(vars(m)), m._state_dict_hooks, list(m._state_dict_hooks)) for m in model.modules()],
        "parameters": [(p, p.dtype, p.data_ptr()) for p in model.parameters()],
        "gradients": [(p.grad, p.grad is not None and p.grad.dtype) for p in model.parameters()],
        "buffers": [(b, b.dtype) for b in model.buffers()],
        "optimizers": [dict(vars(o)) for o in optimizers],
        "groups": [[list(g["params"]) for g in o.param_groups] for o in optimizers],
        "state": [[list(s.items()) for s in o.state.values()] for o in optimizers],
        "torch": [
            torch.autograd.Variable._execution_engine, torch.autograd.function.BackwardCFunction.__dict__.get("apply"),
            F.binary_cross_entropy, F.linear, torch.mm, torch.Tensor.matmul,
        ],
        "autocast": [_native.get_autocast("cpu"), _native.get_cache_enabled()],
        "amp": dict(vars(_amp_state)),
    }  # fmt: skip


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(v, other[k]) for k, v in one.items())
    if type(one) in (list, tuple):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other))
    return one is other or (not isinstance(one, torch.Tensor) and type(one) is type(other) and one == other)


def _trained(batchnorm: bool = True) -> tuple[Any, Any]:
    model = mlp(batchnorm)
    optimizer = adam(model)
    for i in range(2):
        x, y = batch(i)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return model, optimizer


class StubbornSGD(torch.optim.SGD):
    """Lets only some of its methods be replaced, so that ``initialize`` fails half way."""

    forbidden = ""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == self.forbidden:
            raise ValueError("not this one")
        super().__setattr__(name, value)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("forbidden", ["_amp_stash", "_prepare_amp_backward", "step"])
@pytest.mark.parametrize("trained", [False, True])
def test_a_failed_initialize_leaves_everything_as_it_was(amp, level, forbidden, trained) -> None:
    model, first = _trained()
    if not trained:
        first = sgd(model)
    second = StubbornSGD(model.parameters(), lr=0.1)
    second.forbidden = forbidden
    before = _everything(model, first, second)
    with pytest.raises(ValueError, match="not this one"):
        amp.initialize(model, [first, second], opt_level=level, loss_scale=2.0, verbosity=0)
    after = _everything(model, first, second)
    assert [k for k in before if not _same(before[k], after[k])] == []
    second.forbidden = ""
    amp.initialize(model, [first, second], opt_level=level, verbosity=0)  # nothing is in the way of a second try


@pytest.mark.parametrize(
    "options",
    [
        {"opt_level": "O9"}, {"loss_scale": "much"}, {"opt_level": "O2", "keep_batchnorm_fp32": "maybe"},
        {"opt_level": "O1", "master_weights": True}, {"opt_level": "O2", "patch_torch_functions": True},
        {"surprise": 1},
    ],
)  # fmt: skip
def test_a_refused_initialize_leaves_everything_as_it_was(amp, options) -> None:
    model, optimizer = _trained()
    before = _everything(model, optimizer)
    with pytest.raises((RuntimeError, ValueError, AssertionError, TypeError)):
        amp.initialize(model, optimizer, **options)
    after = _everything(model, optimizer)
    assert [k for k in before if not _same(before[k], after[k])] == []


def test_a_failed_second_initialize_leaves_the_first_one_working(amp) -> None:
    model, optimizer = _trained()
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    train(amp, model, optimizer, 2, bad=(1,))
    before = _everything(model, optimizer)
    scales = dict(amp.state_dict())
    other = mlp()
    assert caught(lambda: amp.initialize([other, mlp().half()], sgd(other), opt_level="O2")) == "RuntimeError"
    after = _everything(model, optimizer)
    assert [k for k in before if not _same(before[k], after[k])] == []
    assert amp.state_dict() == scales


@pytest.mark.parametrize("level", LEVELS)
def test_undoing_restores_the_very_same_objects(amp, level) -> None:
    from amp_migrate.apex.amp._amp_state import _amp_state

    model, optimizer = _trained()
    before = _everything(model, optimizer)
    amp.initialize(model, optimizer, opt_level=level, loss_scale="dynamic", verbosity=0)
    assert not _same(before["optimizers"], _everything(model, optimizer)["optimizers"])
    patches.undo_all()
    _amp_state.clear()
    after = _everything(model, optimizer)
    kept = ("class", "model", "forward", "optimizers", "torch", "autocast", "groups")
    if level in ("O0", "O1"):  # a cast model stays cast
        kept += ("modules", "parameters", "buffers", "state")
    assert [k for k in kept if not _same(before[k], after[k])] == []
    assert all(not isinstance(m._state_dict_hooks, dict) or not m._state_dict_hooks for m in model.modules())


def test_undoing_keeps_no_model_or_optimizer_alive(amp) -> None:
    import gc
    import weakref

    model, optimizer = _trained()
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    train(amp, model, optimizer, 1)
    watched = [weakref.ref(model), weakref.ref(optimizer)]
    del model, optimizer
    gc.collect()
    assert [w() for w in watched] == [None, None]
    patches.undo_all()


@pytest.mark.parametrize("level", LEVELS)
def test_verbosity_zero_prints_nothing(amp, level, capfd) -> None:
    model = mlp()
    model, optimizer = amp.initialize(model, sgd(model), opt_level=level, loss_scale="dynamic", verbosity=0)
    train(amp, model, optimizer, 3, bad=(1,))
    assert capfd.readouterr() == ("", "")


def test_an_overflow_is_printed_in_apex_words(amp, capsys) -> None:  # S22
    model = mlp()
    model, optimizer = amp.initialize(model, sgd(model), opt_level="O0", loss_scale="dynamic", verbosity=1)
    capsys.readouterr()
    train(amp, model, optimizer, 2, bad=(1,))
    assert capsys.readouterr().out == (
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0\n"
    )


def test_disabled_everything_passes_through(amp) -> None:
    model = mlp()
    optimizer = sgd(model)
    before = _everything(model, optimizer)
    before.pop("amp")
    amp.initialize(model, optimizer, enabled=False, opt_level="O2", loss_scale=128.0)
    loss = F.mse_loss(model(batch(0)[0]), batch(0)[1])
    with amp.scale_loss(poison(loss), optimizer) as scaled:
        assert scaled.dtype == torch.float32
    with amp.scale_loss(loss, optimizer) as scaled:
        assert scaled is loss
    after = _everything(model, optimizer)
    assert [k for k in before if not _same(before[k], after[k])] == []
