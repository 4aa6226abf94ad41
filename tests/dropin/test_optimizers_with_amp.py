"""Apex's optimizers under ``amp.initialize`` at every level, and under torch's GradScaler."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F

from amp_migrate.apex import _native, optimizers
from amp_migrate.apex.amp._standin_scaler import StandInGradScaler

from .scenarios import batch, mlp, poison
from .test_optimizer_formulas import gradient, start, take_steps

MAKERS = {
    "adam": lambda p: optimizers.FusedAdam(p, lr=0.01, weight_decay=0.01),
    "capturable": lambda p: optimizers.FusedAdam(p, lr=0.01, capturable=True),
    "sgd": lambda p: optimizers.FusedSGD(p, lr=0.05, momentum=0.9),
    "sgd_without_master_grads": lambda p: optimizers.FusedSGD(p, lr=0.05, momentum=0.9, materialize_master_grads=False),
    "adagrad": lambda p: optimizers.FusedAdagrad(p, lr=0.05),
    "lamb": lambda p: optimizers.FusedLAMB(p, lr=0.02),
    "mixed_lamb": lambda p: optimizers.FusedMixedPrecisionLamb(p, lr=0.02),
    "novograd": lambda p: optimizers.FusedNovoGrad(p, lr=0.1),
}
names = pytest.mark.parametrize("name", sorted(MAKERS))


def initialized(amp, name, level):
    model = mlp(batchnorm=True)
    return amp.initialize(model, MAKERS[name](model.parameters()), opt_level=level, verbosity=0)


def train_step(amp, model, optimizer, i=0, bad=False):
    x, y = batch(i % 3)
    optimizer.zero_grad()
    loss = F.mse_loss(model(x).float(), y)
    with amp.scale_loss(poison(loss) if bad else loss, optimizer) as scaled:
        scaled.backward()
    optimizer.step()
    return loss.item()


def steps_of(optimizer):
    return [int(group["step"]) for group in optimizer.param_groups if "step" in group]


@names
@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_training_makes_the_loss_smaller(amp, name, level) -> None:
    model, optimizer = initialized(amp, name, level)
    losses = [train_step(amp, model, optimizer, i) for i in range(30)]
    assert sum(losses[-3:]) < 0.7 * sum(losses[:3]), losses


@names
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_an_overflow_changes_nothing_once(amp, name, level) -> None:
    model, optimizer = initialized(amp, name, level)
    train_step(amp, model, optimizer)
    before, count = copy.deepcopy(model.state_dict()), steps_of(optimizer)
    train_step(amp, model, optimizer, bad=True)
    assert all(torch.equal(v, before[k]) for k, v in model.named_parameters())
    assert steps_of(optimizer) == count
    train_step(amp, model, optimizer)
    assert not all(torch.equal(v, before[k]) for k, v in model.named_parameters())


@names
def test_masters_at_O2_are_float32_and_so_is_the_state(amp, name) -> None:
    model, optimizer = initialized(amp, name, "O2")
    for i in range(3):
        train_step(amp, model, optimizer, i)
    masters = [p for group in optimizer.param_groups for p in group["params"]]
    for master, param in zip(masters, model.parameters()):
        assert master.dtype == torch.float32 and torch.equal(master.detach().to(param.dtype), param.detach())
        state = optimizer.state[master]
        assert state and all(value.dtype == torch.float32 for value in state.values())


@names
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_checkpoint_resumes(amp, name, level, tmp_path) -> None:
    model, optimizer = initialized(amp, name, level)
    for i in range(4):
        train_step(amp, model, optimizer, i)
    torch.save({"m": model.state_dict(), "o": optimizer.state_dict(), "a": amp.state_dict()}, tmp_path / "c.pt")
    going_on = [train_step(amp, model, optimizer, i) for i in range(4)]
    saved = torch.load(tmp_path / "c.pt")

    other, its = initialized(amp, name, level)
    other.load_state_dict(saved["m"])
    its.load_state_dict(saved["o"])
    amp.load_state_dict(saved["a"])
    # the masters of O2 start from rounded weights
    tolerance = 1e-6 if level == "O1" else 2e-2
    assert [train_step(amp, other, its, i) for i in range(4)] == pytest.approx(going_on, abs=tolerance)


@names
def test_state_loaded_before_the_masters_are_made_is_not_rounded(amp, name) -> None:
    model, optimizer = initialized(amp, name, "O2")
    train_step(amp, model, optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        for value in state.values():
            value.fill_(1e-9)  # nothing in float16
    _, other = initialized(amp, name, "O2")
    other.load_state_dict(saved)
    other.zero_grad()  # makes the masters
    masters = [p for group in other.param_groups for p in group["params"]]
    assert all(p.dtype == torch.float32 for p in masters)
    assert all(bool((v == 1e-9).all()) for p in masters for v in other.state[p].values())


def test_FusedSGD_without_materialized_master_grads_is_the_same(amp) -> None:
    params = []
    for name in ("sgd", "sgd_without_master_grads"):
        model, optimizer = initialized(amp, name, "O2")
        for i in range(3):
            train_step(amp, model, optimizer, i)
        assert optimizer.materialize_master_grads == (name == "sgd")
        params.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(p, q) for p, q in zip(*params))


def scaler(scale=1024.0):
    """A GradScaler that scales on a CPU: torch's own from 2.3, else the drop-in's."""
    native = _native.grad_scaler_class("cpu")
    return native("cpu", init_scale=scale) if native is not None else StandInGradScaler(init_scale=scale)


CAPTURABLE = {
    "adam": (
        lambda p: optimizers.FusedAdam(p, lr=0.01, weight_decay=0.1),
        lambda p: optimizers.FusedAdam(p, lr=0.01, weight_decay=0.1, capturable=True),
    ),
    "adam_without_correction": (
        lambda p: optimizers.FusedAdam(p, lr=1e-3, bias_correction=False),
        lambda p: optimizers.FusedAdam(p, lr=1e-3, bias_correction=False, capturable=True),
    ),
    "lamb": (lambda p: optimizers.FusedLAMB(p), lambda p: optimizers.FusedMixedPrecisionLamb(p)),
}


@pytest.mark.parametrize("name", sorted(CAPTURABLE))
@pytest.mark.parametrize("unscale", [False, True], ids=["", "unscaled"])
def test_a_GradScaler_may_leave_unscaling_and_skipping_to_the_step(name, unscale) -> None:
    plain, capturable = CAPTURABLE[name]
    params, others = start(), start()
    reference, optimizer, grad_scaler = plain(params), capturable(others), scaler()
    assert optimizer._step_supports_amp_scaling and not getattr(reference, "_step_supports_amp_scaling", False)
    grad_scaler.scale(torch.ones(()))
    for t in range(1, 7):
        bad = t in (1, 4)  # the very first too: no step has counted then
        for i, p in enumerate(others):
            p.grad = gradient(i, t) * grad_scaler.get_scale()
            if bad and i == 1:
                p.grad[0] = float("inf" if t == 1 else "nan")
        if unscale:
            grad_scaler.unscale_(optimizer)
        before, scale = [p.detach().clone() for p in others], grad_scaler.get_scale()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch: the grad_scaler argument is going to go
            grad_scaler.step(optimizer)
            grad_scaler.update()
        if bad:
            assert all(torch.equal(p, q) for p, q in zip(others, before))
            assert grad_scaler.get_scale() == scale / 2
        else:
            take_steps(reference, params, 1, first=t)
    assert all(torch.allclose(p, q, rtol=0, atol=2e-7) for p, q in zip(params, others))
    assert int(optimizer.param_groups[0]["step"]) == 4
    assert all(torch.isfinite(value).all() for state in optimizer.state.values() for value in state.values())


@pytest.mark.parametrize(
    "make, copies",
    [
        (lambda p: optimizers.FusedAdam(p, capturable=True, master_weights=True), "param_groups_master"),
        (
            lambda p: optimizers.FusedMixedPrecisionLamb(p, reduced_precision_dtype=torch.half),
            "param_groups_full_precision",
        ),
    ],
)
def test_copies_in_full_precision_gather_small_steps(make, copies) -> None:
    halves = [torch.nn.Parameter(torch.full((4,), 2.0).half()), torch.nn.Parameter(torch.ones(4).half())]
    loaded = [torch.full((4,), 3.0).half(), torch.ones(4).half()]
    optimizer = make([{"params": halves, "lr": 2e-4, "weight_decay": 0.0}])
    for p, value in zip(halves, loaded):
        p.data.copy_(value)  # weights loaded after the optimizer was built count
    for _ in range(10):
        for p in halves:
            p.grad = torch.ones_like(p)
        optimizer.step()
    full = getattr(optimizer, copies)[0]["params"]
    assert all(copy.dtype == torch.float32 for copy in full)
    # ten steps of 2e-4: each alone would round to nothing in float16
    assert torch.allclose(full[0], torch.full((4,), 3.0 - 10 * 2e-4), rtol=0, atol=1e-5)
    assert torch.equal(halves[0], full[0].half()) and float(halves[0][0]) < 3.0


@pytest.mark.parametrize("name", ["adam", "sgd", "adagrad", "lamb", "novograd"])
def test_half_parameters_are_computed_in_float32(name) -> None:
    """The step from half parameters and gradients is the float32 step, rounded once."""
    halves = [torch.nn.Parameter(p.detach().half()) for p in start()]
    floats = [torch.nn.Parameter(p.detach().float()) for p in halves]
    optimizer, reference = MAKERS[name](halves), MAKERS[name](floats)
    for i, (p, q) in enumerate(zip(halves, floats)):
        p.grad = gradient(i, 1).half()
        q.grad = p.grad.float()
    optimizer.step()
    reference.step()
    for p, q in zip(halves, floats):
        unit = 1e-3 if name == "lamb" else 0.0  # its direction is rounded before the ratio, as in Apex
        assert torch.allclose(p.detach().float(), q.detach().half().float(), rtol=unit, atol=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: optimizers.FusedAdam(p, capturable=True, master_weights=True),
        lambda p: optimizers.FusedMixedPrecisionLamb(p, reduced_precision_dtype=torch.half),
    ],
)
def test_a_loaded_checkpoint_is_not_overwritten_by_earlier_copies(make) -> None:
    halves = [torch.nn.Parameter(torch.ones(4).half())]
    optimizer = make(halves)
    halves[0].grad = torch.ones_like(halves[0])
    optimizer.step()
    halves[0].data.fill_(5.0)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    optimizer.step()
    assert torch.allclose(halves[0].detach().float(), torch.full((4,), 5.0), rtol=0, atol=0.01)
