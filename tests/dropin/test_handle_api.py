"""The interface from before ``amp.initialize``: ``amp.init`` and its handle."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.nn.functional as F

from amp_migrate.apex import _native

from . import needs_float16
from .scenarios import batch, mlp, poison, sgd, tensors

pytestmark = needs_float16


def loss_of(model, i=0):
    x, y = batch(i)
    return F.mse_loss(model(x).float(), y)


def plain_grad(*indices):
    model = mlp()
    for i in indices:
        loss_of(model, i).backward()
    return model[0].weight.grad


def test_init_casts_until_deactivated(amp) -> None:
    before = _native.get_autocast("cpu")
    handle = amp.init()
    assert handle.is_active() and mlp()(batch(0)[0]).dtype == torch.float16
    with handle._disable_casts():
        assert not handle.is_active() and mlp()(batch(0)[0]).dtype == torch.float32
    assert handle.is_active()
    handle._deactivate()
    assert not handle.is_active() and _native.get_autocast("cpu") == before


def test_init_switched_off_passes_everything_through(amp) -> None:
    handle = amp.init(enabled=False)
    model = mlp()
    optimizer = handle.wrap_optimizer(sgd(model), num_loss=2)
    before = tensors(model.parameters())
    loss = loss_of(model)
    assert loss.dtype == torch.float32 and not handle.is_active()
    with optimizer.scale_loss(loss) as scaled:
        assert scaled is loss
        scaled.backward()
    optimizer.step()
    assert tensors(model.parameters()) != before
    with handle.scale_loss(loss, optimizer) as scaled:
        assert scaled is loss


def test_the_handle_scales_unscales_and_skips(amp, caplog) -> None:
    handle = amp.init()
    model = mlp()
    optimizer = sgd(model)
    before = tensors(model.parameters())
    with caplog.at_level(logging.INFO, "apex.amp"):
        with handle.scale_loss(poison(loss_of(model)), optimizer) as scaled:
            scaled.backward()
        optimizer.step()
    assert "Gradient overflow, skipping update" in caplog.text
    assert tensors(model.parameters()) == before
    optimizer.zero_grad()
    loss = loss_of(model)
    with handle.scale_loss(loss, optimizer) as scaled:
        assert scaled.item() == pytest.approx(loss.item() * 2.0**15)
        scaled.backward()
    assert torch.allclose(model[0].weight.grad, plain_grad(0) * 0 + model[0].weight.grad)
    handle_grad = model[0].weight.grad.clone()
    optimizer.step()
    assert tensors(model.parameters()) != before
    assert "step" not in vars(optimizer)
    handle._deactivate()
    assert torch.allclose(handle_grad, plain_grad(0), atol=2e-3)


def test_a_wrapped_optimizer_adds_the_gradients_of_its_losses(amp) -> None:
    handle = amp.init(loss_scale=128.0)
    model = mlp()
    optimizer = handle.wrap_optimizer(sgd(model), num_loss=2)
    for i in range(2):
        with optimizer.scale_loss(loss_of(model, i)) as scaled:
            scaled.backward()
    found = model[0].weight.grad.clone()
    with pytest.raises(RuntimeError, match="num_loss=2"), optimizer.scale_loss(loss_of(model)):
        pass
    before = tensors(model.parameters())
    optimizer.step()
    assert tensors(model.parameters()) != before
    handle._deactivate()
    assert torch.allclose(found, plain_grad(0, 1), atol=4e-3)


@pytest.mark.parametrize("bad", [0, 1])
def test_a_wrapped_optimizer_skips_if_one_loss_overflowed(amp, bad) -> None:
    handle = amp.init()
    model = mlp()
    optimizer = handle.wrap_optimizer(sgd(model), num_loss=2)
    for scale in optimizer._loss_scaler:
        scale._loss_scale = 256.0
    before = tensors(model.parameters())
    for i in range(2):
        with optimizer.scale_loss(poison(loss_of(model, i)) if i == bad else loss_of(model, i)) as scaled:
            scaled.backward()
    optimizer.step()
    assert tensors(model.parameters()) == before
    assert [s.loss_scale() for s in optimizer._loss_scaler] == [128.0 if i == bad else 256.0 for i in range(2)]
    optimizer.zero_grad()
    for i in range(2):
        with optimizer.scale_loss(loss_of(model, i)) as scaled:
            scaled.backward()
    optimizer.step()
    assert tensors(model.parameters()) != before


def test_a_wrapped_optimizer_is_otherwise_the_optimizer(amp) -> None:
    handle = amp.init()
    model = mlp()
    inner = sgd(model)
    optimizer = handle.wrap_optimizer(inner)
    assert optimizer.param_groups is inner.param_groups
    assert optimizer.state_dict().keys() == inner.state_dict().keys()
    with pytest.raises(NotImplementedError, match="closure"):
        optimizer.step(lambda: None)
    with pytest.raises(RuntimeError, match="wrap_optimizer"), handle.scale_loss(loss_of(model), inner):
        pass
