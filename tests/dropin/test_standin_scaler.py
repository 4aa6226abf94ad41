"""The stand-in for torch's GradScaler does what torch's own does, step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from amp_migrate.apex import _native
from amp_migrate.apex.amp._standin_scaler import StandInGradScaler

needs_native = pytest.mark.skipif(
    _native.grad_scaler_class("cpu") is None, reason="this torch has no GradScaler for a CPU to compare with (2.3)"
)


def train(scaler: Any, unscale: bool) -> list[Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    out = []
    for step in range(12):
        loss = model(torch.randn(3, 4)).pow(2).mean() * (float("inf") if step in (2, 3, 9) else 1.0)
        scaler.scale(loss).backward()
        if unscale:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update(512.0 if step == 6 else None)
        optimizer.zero_grad()
        out.append(([p.detach().clone() for p in model.parameters()], scaler.state_dict()))
    return out


@needs_native
@pytest.mark.parametrize("unscale", [False, True])
def test_it_scales_skips_backs_off_and_grows_as_torchs_own(unscale: bool) -> None:
    options: dict[str, Any] = {"init_scale": 256.0, "growth_interval": 3, "growth_factor": 2.0, "backoff_factor": 0.5}
    ours, theirs = train(StandInGradScaler(**options), unscale), train(torch.amp.GradScaler("cpu", **options), unscale)
    for (our_params, our_state), (their_params, their_state) in zip(ours, theirs):
        assert our_state == their_state
        assert all(torch.equal(a, b) for a, b in zip(our_params, their_params))


@needs_native
def test_state_passes_between_the_two() -> None:
    theirs = torch.amp.GradScaler("cpu", init_scale=64.0)
    theirs.scale(torch.ones(()))
    theirs.update(32.0)
    ours = StandInGradScaler()
    ours.load_state_dict(theirs.state_dict())
    assert ours.get_scale() == 32.0 and ours.state_dict() == theirs.state_dict()


def test_misuse_raises_what_torch_raises() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    scaler = StandInGradScaler()
    with pytest.raises(AssertionError):
        scaler.unscale_(optimizer)
    scaler.scale(torch.ones(()))
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
    with pytest.raises(AssertionError, match="No inf checks"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="empty"):
        scaler.load_state_dict({})


def test_disabled_it_passes_everything_through() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    scaler = StandInGradScaler(enabled=False)
    scaler.scale(parameter.sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(parameter, torch.full((2,), 0.5))
    assert scaler.state_dict() == {} and scaler.get_scale() == 1.0
