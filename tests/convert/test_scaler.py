"""The state of a loss scaler is carried over from Apex's layout to GradScaler's."""

from __future__ import annotations

import pytest
import torch

from amp_migrate.convert import CannotConvert, scaler_state

from .trees import needs_scaler

APEX = {"loss_scaler0": {"loss_scale": 1024.0, "unskipped": 7}, "loss_scaler1": {"loss_scale": 2.0, "unskipped": 0}}


@needs_scaler
def test_a_grad_scaler_goes_on_where_apex_stopped() -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.load_state_dict(scaler_state(APEX))
    assert scaler.get_scale() == 1024.0
    assert scaler.state_dict()["_growth_tracker"] == 7
    assert scaler.get_growth_interval() == 2000


@needs_scaler
def test_a_native_state_comes_back_as_it_is() -> None:
    native = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3).state_dict()
    assert scaler_state(native) == native
    assert scaler_state(torch.amp.GradScaler("cpu", enabled=False).state_dict()) == {}


def test_the_index_chooses_the_loss_scaler() -> None:
    assert scaler_state(APEX, 1)["scale"] == 2.0
    with pytest.raises(CannotConvert, match="has no loss_scaler2"):
        scaler_state(APEX, 2)


@pytest.mark.parametrize("state", [{"model": 1}, {"loss_scaler0": 3}, {"loss_scaler0": {"loss_scale": 2.0}}])
def test_anything_else_is_refused_with_what_was_found(state: dict[str, object]) -> None:
    with pytest.raises(CannotConvert, match="model|loss_scaler0"):
        scaler_state(state)
