"""``amp.scale_loss``: scales, gradients and errors."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

from amp_migrate import notices
from amp_migrate.apex import _native

from . import needs_float16
from .scenarios import adam, batch, grads, mlp, poison, scales, sgd, tensors


def start(amp, level="O0", scale=64.0, make=sgd, **options):
    model = mlp()
    return amp.initialize(model, make(model), opt_level=level, loss_scale=scale, verbosity=0, **options)


def loss_of(model, i=0):
    x, y = batch(i)
    return F.mse_loss(model(x).float(), y)


def plain_grads(*indices, weight=1.0):
    model = mlp()
    for i in indices:
        (loss_of(model, i) * weight).backward()
    return [p.grad for p in model.parameters()]


def close(found, expected, **tolerance):
    return all(
        torch.allclose(f.float(), e, **{"rtol": 1e-5, "atol": 1e-7, **tolerance}) for f, e in zip(found, expected)
    )


def test_an_optimizer_in_the_place_of_loss_id_is_explained(amp) -> None:  # S08
    model, optimizer = start(amp)
    with pytest.raises(TypeError, match="list"):
        amp.scale_loss(loss_of(model), optimizer, optimizer).__enter__()


def test_one_block_per_term_equals_one_block_for_the_sum(amp) -> None:  # S10
    model, optimizer = start(amp, scale="dynamic")
    for i in range(3):
        with amp.scale_loss(loss_of(model, i), optimizer) as scaled:
            scaled.backward()
    separate = [p.grad.clone() for p in model.parameters()]
    optimizer.zero_grad()
    with amp.scale_loss(sum(loss_of(model, i) for i in range(3)), optimizer) as scaled:
        scaled.backward()
    assert close([p.grad for p in model.parameters()], separate)


def test_an_optimizer_built_after_initialize_is_named(amp) -> None:  # S11
    model, _ = start(amp)
    late = adam(model)
    with pytest.raises(RuntimeError, match="Adam.*not returned by amp.initialize"):
        amp.scale_loss(loss_of(model), late).__enter__()


def test_a_written_scale_is_used_and_shown(amp) -> None:  # S36
    model, optimizer = start(amp, scale="dynamic")
    scaler = amp._amp_state.loss_scalers[0]
    for value in (2.0**20, 2.0**4):  # before and after the first use
        scaler._loss_scale = value
        loss = loss_of(model)
        with amp.scale_loss(loss, optimizer) as scaled:
            assert scaled.item() == loss.item() * value
            scaled.backward()
        assert scaler.loss_scale() == value
        assert amp.state_dict()["loss_scaler0"]["loss_scale"] == value
        assert close([p.grad for p in model.parameters()], plain_grads(0))
        optimizer.zero_grad()


def test_a_static_scale_applies_at_O0_too(amp) -> None:  # S49
    model, optimizer = start(amp, scale=128.0)
    loss = loss_of(model)
    with amp.scale_loss(loss, optimizer) as scaled:
        assert scaled.item() == 128.0 * loss.item()
        scaled.backward()
    assert close([p.grad for p in model.parameters()], plain_grads(0))


@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize("scale", [64.0, "dynamic"])
def test_micro_batches_accumulate_true_gradients(amp, delayed, scale) -> None:  # S50
    model, optimizer = start(amp, scale=scale)
    for i in range(4):
        with amp.scale_loss(loss_of(model, i) / 4, optimizer, delay_unscale=delayed and i < 3) as scaled:
            scaled.backward()
    assert close([p.grad for p in model.parameters()], plain_grads(0, 1, 2, 3, weight=0.25))
    optimizer.step()


def test_micro_batches_accumulate_though_the_scale_changes_between_them(amp) -> None:  # S50
    model, optimizer = start(amp, scale="dynamic")
    amp._amp_state.loss_scalers[0]._scale_seq_len = 1
    seen = []
    for i in range(4):
        seen.append(amp._amp_state.loss_scalers[0].loss_scale())
        with amp.scale_loss(loss_of(model, i) / 4, optimizer) as scaled:
            scaled.backward()
    assert seen == [2.0**16, 2.0**17, 2.0**18, 2.0**19]
    assert close([p.grad for p in model.parameters()], plain_grads(0, 1, 2, 3, weight=0.25))


@pytest.mark.parametrize(
    "level", ["O0", pytest.param("O1", marks=needs_float16), pytest.param("O2", marks=needs_float16)]
)
def test_clipping_between_block_and_step_sees_the_true_norm(amp, level) -> None:  # S51
    model, optimizer = start(amp, level, scale=1024.0)
    with amp.scale_loss(loss_of(model), optimizer) as scaled:
        scaled.backward()
    norm = torch.nn.utils.clip_grad_norm_(list(amp.master_params(optimizer)), 1e-3)
    expected = torch.sqrt(sum(g.pow(2).sum() for g in plain_grads(0)))
    assert float(norm) == pytest.approx(float(expected), rel=1e-2 if level != "O0" else 1e-5)


def test_master_params_yields_the_parameters_of_all_groups_in_order(amp) -> None:  # S51
    model = mlp()
    groups = [{"params": list(model[2].parameters())}, {"params": list(model[0].parameters())}]
    model, optimizer = amp.initialize(model, torch.optim.SGD(groups, lr=0.1), opt_level="O1", verbosity=0)
    found = amp.master_params(optimizer)
    assert iter(found) is found
    assert [id(p) for p in found] == [id(p) for p in (*model[2].parameters(), *model[0].parameters())]


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_an_optimizer_without_gradients_steps_in_peace(amp, level) -> None:  # S52
    left, right = mlp(), mlp()
    (left, right), (a, b) = amp.initialize(
        [left, right], [sgd(left), sgd(right)], opt_level=level, loss_scale="dynamic", verbosity=0
    )
    amp._amp_state.loss_scalers[0]._loss_scale = 256.0
    before = tensors(left.parameters()), tensors(right.parameters())
    with amp.scale_loss(loss_of(left), [a, b]) as scaled:
        scaled.backward()
    a.step()
    b.step()
    assert tensors(left.parameters()) != before[0]
    assert tensors(right.parameters()) == before[1]
    assert scales(amp) == {"loss_scaler0": {"loss_scale": 256.0, "unskipped": 1}}


def test_one_overflow_of_two_optimizers_halves_once_and_skips_both(amp) -> None:  # S54
    left, right = mlp(), mlp()
    (left, right), (a, b) = amp.initialize(
        [left, right], [sgd(left), adam(right)], opt_level="O0", loss_scale="dynamic", verbosity=0
    )
    before = tensors(left.parameters()), tensors(right.parameters())
    for expected in ((2.0**15, 0), (2.0**15, 1), (2.0**15, 2)):
        a.zero_grad()
        b.zero_grad()
        overflow = expected[1] == 0
        with amp.scale_loss(loss_of(left) + (poison(loss_of(right)) if overflow else loss_of(right)), [a, b]) as scaled:
            scaled.backward()
        a.step()
        b.step()
        unchanged = (tensors(left.parameters()), tensors(right.parameters())) == before
        assert unchanged == overflow
        assert tuple(scales(amp)["loss_scaler0"].values()) == expected


@pytest.mark.parametrize("floor, expected", [(1.0, 1.0), (None, 2.0**-126)])
def test_endless_overflows_stop_above_zero_with_one_notice(amp, floor, expected, monkeypatch) -> None:  # S22
    monkeypatch.setattr(notices, "_already_said", set())
    model, optimizer = start(amp, scale="dynamic", min_loss_scale=floor)
    before = tensors(model.parameters())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(200):
            optimizer.zero_grad()
            with amp.scale_loss(poison(loss_of(model), float("nan")), optimizer) as scaled:
                scaled.backward()
            optimizer.step()
            assert amp._amp_state.loss_scalers[0].loss_scale() > 0
    assert amp._amp_state.loss_scalers[0].loss_scale() == expected
    assert tensors(model.parameters()) == before
    kinds = [w.category for w in said if "loss scale fell" in str(w.message)]
    assert kinds == ([] if floor else [notices.MigrationNotice])


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_an_exception_in_the_block_restores_casts_and_gradients(amp, level) -> None:
    model, optimizer = start(amp, level, scale="dynamic")
    amp._amp_state.loss_scalers[0]._loss_scale = 256.0
    with amp.scale_loss(loss_of(model), optimizer) as scaled:
        scaled.backward()
    gradients = grads(list(amp.master_params(optimizer)))
    state, counters = _native.get_autocast("cpu"), scales(amp)
    loss = loss_of(model, 1)
    with pytest.raises(KeyError), amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
        raise KeyError
    assert grads(list(amp.master_params(optimizer))) == gradients
    assert _native.get_autocast("cpu") == state
    assert state.enabled == (level == "O1" and bool(amp._amp_state.ambient.device_types))
    assert scales(amp) == counters
    before = tensors(amp.master_params(optimizer))
    optimizer.step()
    assert tensors(amp.master_params(optimizer)) != before


def test_leaving_by_break_counts_as_a_normal_end(amp) -> None:
    model, optimizer = start(amp, scale="dynamic")
    for _ in range(1):
        with amp.scale_loss(loss_of(model), optimizer) as scaled:
            scaled.backward()
            break
    assert scales(amp)["loss_scaler0"]["unskipped"] == 1
    assert close([p.grad for p in model.parameters()], plain_grads(0))


def test_a_loss_id_beyond_num_losses_is_explained(amp) -> None:
    model, optimizer = start(amp)
    with pytest.raises(IndexError, match="num_losses=2"):
        amp.scale_loss(loss_of(model), optimizer, loss_id=1).__enter__()


@pytest.mark.parametrize("min_scale, max_scale, loaded", [(2.0**18, 2.0**24, 2.0**16), (None, 2.0**10, 2.0**12)])
@pytest.mark.parametrize("verbosity", [0, 1])
def test_bounds_count_only_when_the_scale_changes(amp, min_scale, max_scale, loaded, verbosity) -> None:
    model, optimizer = start(amp, scale="dynamic", min_loss_scale=min_scale, max_loss_scale=max_scale)
    amp._amp_state.verbosity = verbosity
    amp.load_state_dict({"loss_scaler0": {"loss_scale": loaded, "unskipped": 0}})
    with amp.scale_loss(loss_of(model), optimizer) as scaled:
        scaled.backward()
    assert amp._amp_state.loss_scalers[0].loss_scale() == loaded


def test_a_plain_backward_beside_the_blocks_adds_true_gradients(amp) -> None:  # S57
    model, optimizer = start(amp, scale="dynamic")
    with amp.scale_loss(loss_of(model), optimizer) as scaled:
        scaled.backward()
    loss_of(model, 1).backward()
    assert close([p.grad for p in model.parameters()], plain_grads(0, 1))
