"""LARC: the published formula, a live view on the optimizer inside, and amp and schedulers that take it as it is."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch

from amp_migrate.apex.parallel import LARC
from amp_migrate.apex.parallel.LARC import LARC as LARC_by_file

from .scenarios import batch, mlp, poison, sgd


def wrapped(model: torch.nn.Module, **options: Any) -> LARC:
    return LARC(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01), **options)


def backward(model: torch.nn.Module, step: int = 0) -> None:
    x, y = batch(step)
    torch.nn.functional.mse_loss(model(x), y).backward()


def tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def published(optimizer: torch.optim.Optimizer, trust: float, clip: bool, eps: float) -> None:
    """One step by the paper: the optimizer itself, on gradients with weight decay times the adaptive rate."""
    saved = [group["weight_decay"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        decay, group["weight_decay"] = group["weight_decay"], 0
        for p in (p for p in group["params"] if p.grad is not None):
            weights, slope = torch.norm(p.data), torch.norm(p.grad.data)
            if float(weights) and float(slope):
                local = trust * weights / (slope + weights * decay + eps)
                factor = min(local / group["lr"], 1) if clip else local
                p.grad.data.copy_((p.grad.data + decay * p.data) * factor)
    optimizer.step()
    for group, decay in zip(optimizer.param_groups, saved):
        group["weight_decay"] = decay


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("make", ["SGD", "Adam"])
def test_training_follows_the_published_formula_bit_by_bit(clip, make) -> None:
    ours, theirs = mlp(), mlp()
    for model in (ours, theirs):
        torch.nn.init.zeros_(list(model.parameters())[1])  # a zero norm: left alone
    options = {"lr": 0.01, "weight_decay": 0.02}
    inner, reference = (getattr(torch.optim, make)(model.parameters(), **options) for model in (ours, theirs))
    larc = LARC(inner, trust_coefficient=0.03, clip=clip, eps=1e-6)
    for step in range(20):
        for model in (ours, theirs):
            model.zero_grad()
            backward(model, step)
        larc.step()
        published(reference, 0.03, clip, 1e-6)
    assert all(torch.equal(a, b) for a, b in zip(tensors(ours), tensors(theirs)))
    assert inner.param_groups[0]["weight_decay"] == 0.02


def test_signature_is_that_of_Apex() -> None:
    parameters = inspect.signature(LARC).parameters.values()
    assert [(p.name, p.default) for p in parameters][1:] == [("trust_coefficient", 0.02), ("clip", True), ("eps", 1e-8)]
    assert LARC is LARC_by_file


def test_a_parameter_without_gradient_stays() -> None:
    model = mlp()
    larc = wrapped(model)
    backward(model)
    frozen = next(iter(model.parameters()))
    frozen.grad, before = None, frozen.detach().clone()
    larc.step()
    assert torch.equal(frozen, before)


def test_groups_state_and_state_dict_are_the_inner_ones_at_all_times() -> None:  # S32
    model = mlp()
    larc = wrapped(model)
    backward(model)
    larc.step()
    assert larc.state is larc.optim.state and larc.param_groups is larc.optim.param_groups
    assert larc.defaults is larc.optim.defaults
    assert repr(larc) == repr(larc.optim)
    state = larc.state_dict()
    assert state["param_groups"] == larc.optim.state_dict()["param_groups"]
    state["param_groups"][0]["lr"] = 0.5
    larc.load_state_dict(state)
    assert larc.param_groups[0]["lr"] == larc.optim.param_groups[0]["lr"] == 0.5
    groups = [dict(larc.param_groups[0], lr=0.25)]
    larc.param_groups = groups
    assert larc.optim.param_groups is groups
    larc.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    assert len(larc.optim.param_groups) == 2
    larc.zero_grad()
    assert all(p.grad is None or not p.grad.abs().sum() for p in model.parameters())


def test_weight_decay_comes_back_after_an_exception(monkeypatch) -> None:
    model = mlp()
    first, *others = model.parameters()
    inner = torch.optim.SGD([{"params": [first], "weight_decay": 0.1}, {"params": others, "weight_decay": 0.2}], lr=0.1)
    larc = LARC(inner)
    backward(model)

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    for owner, name in ((inner, "step"), (larc, "_scale_gradient")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            with pytest.raises(KeyboardInterrupt):
                larc.step()
        assert [group["weight_decay"] for group in inner.param_groups] == [0.1, 0.2]


def test_a_closure_is_called_once_and_its_gradients_are_scaled() -> None:
    with_closure, without = mlp(), mlp()
    calls = []

    def closure() -> torch.Tensor:
        calls.append(1)
        x, y = batch(0)
        loss = torch.nn.functional.mse_loss(with_closure(x), y)
        loss.backward()
        return loss

    assert wrapped(with_closure).step(closure).requires_grad and calls == [1]
    backward(without)
    assert wrapped(without).step() is None
    assert all(torch.equal(a, b) for a, b in zip(tensors(with_closure), tensors(without)))


@pytest.mark.parametrize("amp_first", [True, False])
def test_schedulers_and_amp_take_it_in_either_order(amp, amp_first, no_warnings) -> None:  # S31
    model = mlp()
    larc = wrapped(model)
    schedule = torch.optim.lr_scheduler
    make = [
        lambda: schedule.CosineAnnealingLR(larc, 10),
        lambda: schedule.OneCycleLR(larc, max_lr=0.2, total_steps=10),
        lambda: schedule.ReduceLROnPlateau(larc),
    ]
    schedulers = [] if amp_first else [f() for f in make]
    _, same = amp.initialize(model, larc, opt_level="O0", loss_scale="dynamic", verbosity=0)
    assert same is larc and type(same) is LARC and isinstance(same, torch.optim.Optimizer)
    schedulers = schedulers or [f() for f in make]
    x, y = batch(0)
    with amp.scale_loss(torch.nn.functional.mse_loss(model(x), y), larc) as loss:
        loss.backward()
    larc.step()
    before = larc.optim.param_groups[0]["lr"]
    schedulers[1].step()
    assert larc.optim.param_groups[0]["lr"] != before


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_its_step_sees_unscaled_gradients(amp, level) -> None:
    results = []
    for scale in (2.0, 4096.0):
        model = mlp()
        larc = wrapped(model)
        model, larc = amp.initialize(model, larc, opt_level=level, loss_scale=scale, verbosity=0)
        for step in range(3):
            larc.zero_grad()
            x, y = batch(step)
            with amp.scale_loss(torch.nn.functional.mse_loss(model(x).float(), y), larc) as loss:
                loss.backward()
            larc.step()
        results.append([p.detach().clone() for p in amp.master_params(larc)])
    # powers of two: nothing rounds in float32, half gradients may
    tolerance = 0.0 if level == "O0" else 1e-3
    assert all(torch.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in zip(*results))


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_an_overflow_skips_its_step_once(amp, level, capsys) -> None:
    model = mlp()
    larc = wrapped(model)
    model, larc = amp.initialize(model, larc, opt_level=level, verbosity=1)
    unchanged = []
    for bad in (True, False):
        larc.zero_grad()
        x, y = batch(0)
        loss = torch.nn.functional.mse_loss(model(x).float(), y)
        with amp.scale_loss(poison(loss) if bad else loss, larc) as scaled:
            scaled.backward()
        before = [p.detach().clone() for p in amp.master_params(larc)]
        larc.step()
        unchanged.append(all(torch.equal(a, b) for a, b in zip(before, amp.master_params(larc))))
        assert larc.param_groups[0]["weight_decay"] == 0.01
    assert unchanged == [True, False]
    assert capsys.readouterr().out.count("Gradient overflow.  Skipping step, loss scaler 0") == 1


def test_an_overflow_skips_where_the_inner_kernel_could_skip_by_itself(amp) -> None:
    model = mlp()
    try:
        inner = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    except (TypeError, RuntimeError):
        pytest.skip("no fused Adam for the CPU before torch 2.4")
    model, larc = amp.initialize(model, LARC(inner), opt_level="O0", loss_scale="dynamic", verbosity=0)
    before = tensors(model)
    x, y = batch(0)
    with amp.scale_loss(poison(torch.nn.functional.mse_loss(model(x), y)), larc) as loss:
        loss.backward()
    grads = [p.grad.clone() for p in model.parameters()]
    larc.step()
    assert all(torch.equal(a, b) for a, b in zip(before, tensors(model)))
    assert all(torch.allclose(p.grad, g, equal_nan=True) for p, g in zip(model.parameters(), grads))


@pytest.mark.parametrize("level", [None, "O1", "O2"])
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_stand_on_their_own(amp, level, how) -> None:
    model = mlp()
    larc = wrapped(model, trust_coefficient=0.5, clip=False, eps=1e-3)
    if level is not None:
        model, larc = amp.initialize(model, larc, opt_level=level, verbosity=0)
    if how == "pickle" and level == "O2":
        pytest.skip("masters aren't part of the model")
    if how == "deepcopy":
        other_model, twin = copy.deepcopy((model, larc))
    else:
        other_model, twin = pickle.loads(pickle.dumps((model, larc)))
    assert (twin.trust_coefficient, twin.clip, twin.eps) == (0.5, False, 1e-3)
    assert twin.optim is not larc.optim and twin.param_groups is twin.optim.param_groups
    assert twin.param_groups[0]["params"][0] is next(iter(other_model.parameters()))
    before = tensors(model)
    for param in other_model.parameters():
        param.grad = torch.ones_like(param)
    torch.optim.SGD.step(twin.optim) if level == "O2" else twin.step()
    assert all(torch.equal(a, b) for a, b in zip(before, tensors(model)))


def test_a_pickle_of_Apex_names_what_it_lacks() -> None:
    inner = sgd(mlp())
    with pytest.raises(RuntimeError, match="load a state_dict"):
        LARC.__new__(LARC).__setstate__(inner.__getstate__())
    larc = wrapped(mlp())
    larc.__setstate__(inner.__getstate__())
    assert larc.optim.param_groups is inner.param_groups


@pytest.mark.skipif(not hasattr(torch.optim.Optimizer, "register_step_pre_hook"), reason="hooks came with torch 2.0")
def test_hooks_registered_on_it_run_once_around_the_inner_step() -> None:
    model = mlp()
    larc = wrapped(model)
    seen = []
    larc.register_step_pre_hook(lambda *_: seen.append("before"))
    larc.register_step_post_hook(lambda *_: seen.append("after"))
    backward(model)
    larc.step()
    assert seen == ["before", "after"]
    with pytest.raises(AttributeError, match="nothing_such"):
        larc.nothing_such  # noqa: B018
