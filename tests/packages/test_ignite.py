"""PyTorch-Ignite (0.4.13) with ``amp_mode="apex"``."""

from __future__ import annotations

from typing import Any, Iterator

import pytest
import torch
from torch import nn

import amp_migrate

engine = pytest.importorskip("ignite.engine", reason="run by `nox -s packages`")


@pytest.fixture(autouse=True)
def apex_installed() -> Iterator[None]:
    amp_migrate.install()
    yield
    amp_migrate.uninstall()


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(8, 6, generator=generator), torch.randint(0, 2, (8,), generator=generator)) for _ in range(4)]


def train(amp_mode: Any, accumulation: int = 1) -> tuple[nn.Module, list[float]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if amp_mode == "apex":
        from apex import amp

        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    trainer = engine.create_supervised_trainer(
        model, optimizer, nn.functional.cross_entropy, amp_mode=amp_mode, gradient_accumulation_steps=accumulation
    )
    losses: list[float] = []
    trainer.add_event_handler(engine.Events.ITERATION_COMPLETED, lambda e: losses.append(e.state.output))
    trainer.run(batches(), max_epochs=5)
    return model, losses


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_engine_trains_through_its_apex_branch(accumulation: int) -> None:
    _, full = train(None, accumulation)
    _, losses = train("apex", accumulation)
    assert losses == pytest.approx(full, rel=0.05, abs=0.02)
    assert losses != full and losses[-1] < losses[0]
