"""Native to Apex and back changes nothing; once is as good as twice; random trees keep what they are."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_migrate.convert import CannotConvert, convert_state, optimizer_state, scaler_state

from .trees import APEX, NATIVE, SEVERAL, adam_state, equal, fused_state, needs_scaler, seeded, sgd_state, weights

SCALES = st.one_of(
    st.floats(min_value=1e-3, max_value=2.0**40, allow_nan=False), st.integers(0, 24).map(lambda n: 2.0**n)
)
TRACKERS = st.integers(min_value=0, max_value=1999)
KEYS = st.sampled_from(["amp", "scaler", "amp_state", "x y"])


@given(SCALES, TRACKERS, KEYS)
def test_a_native_scaler_goes_to_apex_and_comes_back(scale: float, tracker: int, key: str) -> None:
    native = {**NATIVE, "scale": scale, "_growth_tracker": tracker}
    apex, _ = convert_state({key: native}, to="apex")
    assert apex == {key: {"loss_scaler0": {"loss_scale": scale, "unskipped": tracker}}}
    assert convert_state(apex)[0] == {key: native}
    assert scaler_state(apex[key]) == native


@given(st.lists(st.tuples(SCALES, TRACKERS), min_size=2, max_size=5))
def test_several_scalers_go_round(numbers: list[tuple[float, int]]) -> None:
    apex = {f"loss_scaler{i}": {"loss_scale": scale, "unskipped": count} for i, (scale, count) in enumerate(numbers)}
    native, _ = convert_state({"amp": apex})
    assert convert_state(native, to="apex")[0] == {"amp": apex}
    assert convert_state(native)[0] is native
    assert all(scaler_state(apex, i) == native["amp"][f"loss_scaler{i}"] for i in range(len(numbers)))


@pytest.mark.parametrize("factor", [{"growth_factor": 1.5}, {"backoff_factor": 0.25}, {"growth_interval": 100}])
def test_other_factors_are_refused_with_what_would_be_lost(factor: dict[str, Any]) -> None:
    with pytest.raises(CannotConvert, match=f"would lose .*{next(iter(factor))}"):
        convert_state({"scaler": {**NATIVE, **factor}}, to="apex")


@pytest.mark.parametrize(
    "saved",
    [
        {
            "epoch": 1,
            "arch": "r",
            "state_dict": weights(),
            "optimizer": sgd_state([]),
            "version": 2,
            "amp_scaler": NATIVE,
        },
        {"pytorch-lightning_version": "1.5.0", "state_dict": weights(), "MixedPrecision": NATIVE},
        {"pytorch-lightning_version": "1.8.0", "state_dict": weights(), "MixedPrecision": NATIVE},
        {"optimizer": {**sgd_state(weights().values()), "base_param_settings": None, "loss_scaler": NATIVE}},
    ],
)
def test_frameworks_keys_go_round(saved: Any) -> None:
    apex, _ = convert_state(saved, to="apex")
    assert not equal(apex, saved) and equal(convert_state(apex)[0], saved)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 2**20), st.booleans())
@settings(deadline=None)
def test_adam_goes_to_FusedAdams_layout_and_comes_back(sizes: list[int], step: int, several: bool) -> None:
    state = adam_state([seeded(size, seed=size) for size in sizes])
    for entry in state["state"].values():
        entry["step"] = torch.tensor(float(step))
    if several and len(sizes) > 1:
        (group,) = state["param_groups"]
        state["param_groups"] = [{**group, "params": [0]}, {**group, "lr": 1.0, "params": list(range(1, len(sizes)))}]
    apex, _ = convert_state({"optimizer": state}, to="apex")
    assert all(group["step"] == step for group in apex["optimizer"]["param_groups"])
    back, _ = convert_state(apex)
    assert equal(back["optimizer"]["param_groups"], state["param_groups"])
    for index, entry in state["state"].items():
        found = back["optimizer"]["state"][index]
        assert found["exp_avg"] is entry["exp_avg"] and torch.equal(found["step"], entry["step"])
    assert convert_state(back)[0] is back
    assert equal(optimizer_state(apex["optimizer"], "AdamW")["state"], state["state"])


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.just(torch.ones(2)), st.binary(max_size=2)
)
TREES = st.recursive(
    st.one_of(LEAVES, st.sampled_from([dict(APEX), dict(SEVERAL), dict(NATIVE), fused_state([torch.ones(2)])])),
    lambda inside: st.one_of(
        st.lists(inside, max_size=3),
        st.dictionaries(st.text("abm", max_size=2), inside, max_size=3),
        st.tuples(inside, inside),
    ),
    max_leaves=12,
)


@given(TREES)
@settings(deadline=None, max_examples=150)
def test_any_tree_converts_and_converting_again_changes_nothing(tree: Any) -> None:
    before = repr(tree)
    once, _ = convert_state(tree)
    twice, _ = convert_state(once)
    assert twice is once or equal(twice, once)
    assert repr(tree) == before
    if "loss_scale'" not in before and "bias_correction" not in before:
        assert once is tree


def apex_updates(state: dict[str, Any], overflows: list[bool]) -> None:
    """apex/amp/scaler.py, LossScaler.update_scale, without bounds."""
    for overflow in overflows:
        if overflow:
            state["loss_scale"], state["unskipped"] = state["loss_scale"] / 2.0, 0
        else:
            state["unskipped"] += 1
        if state["unskipped"] == 2000:
            state["loss_scale"], state["unskipped"] = state["loss_scale"] * 2.0, 0


@needs_scaler
@pytest.mark.parametrize("seed", range(4))
def test_a_converted_scaler_and_apexs_take_the_same_way(seed: int) -> None:
    chance = random.Random(seed)
    apex = {"loss_scale": 2.0**16, "unskipped": chance.choice([0, 1700, 1999])}
    scaler = torch.amp.GradScaler("cpu")
    scaler.load_state_dict(scaler_state({"loss_scaler0": apex}))
    assert scaler.state_dict() == scaler_state({"loss_scaler0": apex})  # also before the first scale()
    scaler.scale(torch.ones(1))
    assert scaler.state_dict() == scaler_state({"loss_scaler0": apex})
    p = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([p], lr=0.0)
    for overflow in [chance.random() < 0.01 for _ in range(400)]:
        p.grad = torch.full((1,), float("inf") if overflow else 1.0)
        scaler.step(optimizer)
        scaler.update()
        apex_updates(apex, [overflow])
        assert scaler.state_dict() == scaler_state({"loss_scaler0": apex})
