"""States of Apex's optimizers load into torch's, which then take the same steps, and back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from amp_migrate.apex import optimizers as dropin
from amp_migrate.convert import CannotConvert, convert_state, optimizer_state

from .trees import VERSION, adam_state, equal, fused_state, seeded, sgd_state, snapshot, weights

#: a step in a tensor is a float32 in the formulas of torch before 1.12
LIMIT = 2e-7 if VERSION >= (1, 12) else 5e-7
SHAPES = ((3, 2), (3,), (2, 3))


def params() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(seeded(*shape, seed=i)) for i, shape in enumerate(SHAPES)]


def take_steps(optimizer: Any, parameters: Any, count: int, first: int = 0) -> None:
    for t in range(first, first + count):
        for i, p in enumerate(parameters):
            p.grad = seeded(*p.shape, seed=7 * t + i)
        optimizer.step()


GROUPS = [lambda p: p, lambda p: [{"params": p[:1], "weight_decay": 0.1}, {"params": p[1:], "lr": 0.02}]]
PAIRS = [
    (dropin.FusedAdam, {"lr": 0.01, "weight_decay": 0.1}, torch.optim.AdamW, True),
    (dropin.FusedAdam, {"lr": 0.01, "weight_decay": 0.1, "adam_w_mode": False}, torch.optim.Adam, False),
    (dropin.FusedAdam, {"lr": 0.01, "capturable": True}, torch.optim.AdamW, None),
    (dropin.FusedSGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}, torch.optim.SGD, None),
    (dropin.FusedSGD, {"lr": 0.1}, torch.optim.SGD, None),
    (dropin.FusedAdagrad, {"lr": 0.1, "weight_decay": 0.1}, torch.optim.Adagrad, None),
]


@pytest.mark.parametrize("grouped", GROUPS)
@pytest.mark.parametrize(("old", "settings", "new", "adam_w_mode"), PAIRS)
def test_torchs_class_goes_on_where_the_fused_one_stopped(
    old: Any, settings: Any, new: Any, adam_w_mode: Any, grouped: Any
) -> None:
    ours = params()
    fused = old(grouped(ours), **settings)
    take_steps(fused, ours, 3)
    saved = fused.state_dict()
    before = snapshot(saved)
    for state in (convert_state(saved, adam_w_mode=adam_w_mode)[0], optimizer_state(saved, new)):
        theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
        going_on = new(grouped(theirs), lr=0.5)
        going_on.load_state_dict(copy.deepcopy(state))
        reference = [torch.nn.Parameter(p.detach().clone()) for p in ours]
        fused_again = old(grouped(reference), **settings)
        fused_again.load_state_dict(copy.deepcopy(saved))
        take_steps(going_on, theirs, 3, 3)
        take_steps(fused_again, reference, 3, 3)
        assert all(torch.allclose(a, b, rtol=0, atol=LIMIT) for a, b in zip(theirs, reference))
    assert equal(saved, before)


def test_the_next_update_of_a_user_reports_state_is_the_sixth() -> None:
    first, second = torch.tensor([0.5]), torch.tensor([0.25])
    saved = {
        "state": {0: {"exp_avg": first, "exp_avg_sq": second}},
        "param_groups": [
            {
                "lr": 0.1,
                "betas": (0.9, 0.999),
                "eps": 1e-8,
                "weight_decay": 0.0,
                "bias_correction": True,
                "step": 5,
                "params": [0],
            }
        ],
    }
    state = optimizer_state(saved, torch.optim.Adam)
    assert state["state"][0]["exp_avg"] is first
    p = torch.nn.Parameter(torch.tensor([1.0]))
    adam = torch.optim.Adam([p], lr=1.0)
    adam.load_state_dict(state)
    p.grad = torch.tensor([1.0])
    adam.step()
    m, v = 0.9 * 0.5 + 0.1, 0.999 * 0.25 + 0.001
    expected = 1.0 - 0.1 * (m / (1 - 0.9**6)) / ((v / (1 - 0.999**6)) ** 0.5 + 1e-8)
    assert p.item() == pytest.approx(expected, abs=1e-6)
    assert float(adam.state[p]["step"]) == 6


def test_groups_keep_their_own_steps_and_each_parameter_has_its_own_tensor() -> None:
    state = fused_state(params(), step=5)
    (group,) = state["param_groups"]
    state["param_groups"] = [{**group, "params": [0]}, {**group, "params": [1, 2], "step": 9}]
    converted = optimizer_state(state)
    steps = [entry["step"] for entry in converted["state"].values()]
    assert [float(step) for step in steps] == [5.0, 9.0, 9.0]
    assert all(s.dtype == torch.float32 and s.dim() == 0 and s.device.type == "cpu" for s in steps)
    assert len({step.data_ptr() for step in steps}) == 3
    assert "step" not in converted["param_groups"][0] and "bias_correction" not in converted["param_groups"][0]


def test_tensors_in_groups_become_numbers_where_torch_has_numbers() -> None:
    state = fused_state(params(), step=torch.tensor([4], dtype=torch.int32), lr=torch.tensor(0.25))
    converted = optimizer_state(state)
    assert converted["param_groups"][0]["lr"] == 0.25 and type(converted["param_groups"][0]["lr"]) is float
    assert float(converted["state"][0]["step"]) == 4.0


def test_torchs_own_int_steps_stay() -> None:
    state = adam_state(params(), step=11)
    assert convert_state(state)[0] is state
    assert optimizer_state(state, "AdamW") is state


def test_moments_without_a_step_are_refused() -> None:
    state = fused_state(params())
    del state["param_groups"][0]["step"]
    with pytest.raises(CannotConvert, match=r"optimizer.param_groups\[0\] has moments but no step"):
        convert_state({"optimizer": state})


def test_a_state_from_before_the_first_step_converts() -> None:
    state = dropin.FusedAdam(params()).state_dict()
    converted = optimizer_state(state)
    torch.optim.AdamW(params()).load_state_dict(converted)
    assert converted["state"] == {}


def test_what_no_file_says_is_assumed_and_said() -> None:
    _, report = convert_state({"optimizer": fused_state(params())})
    assert any(note.kind.value == "assumed" and "adam_w_mode" in note.text for note in report.notes)
    converted, report = convert_state({"optimizer": fused_state(params())}, adam_w_mode=False)
    assert not any("adam_w_mode" in note.text for note in report.notes)
    assert converted["optimizer"]["param_groups"][0]["decoupled_weight_decay"] is False


def test_bias_correction_off_is_said_to_be_lost() -> None:
    _, report = convert_state({"optimizer": fused_state(params(), bias_correction=False)})
    assert any(note.kind.value == "lost" and "bias_correction" in note.text for note in report.notes)


def test_the_old_FusedAdam_loses_its_clipping_and_says_so() -> None:
    state = adam_state(params(), step=4)
    group = state["param_groups"][0]
    del group["amsgrad"]
    group.update(bias_correction=True, max_grad_norm=1.0)
    converted, report = convert_state(state)
    assert "max_grad_norm" not in converted["param_groups"][0]
    assert [entry["step"] for entry in converted["state"].values()] == [4, 4, 4]
    assert any("max_grad_norm=[1.0]" in note.text for note in report.notes)
    torch.optim.AdamW(params()).load_state_dict(converted)


def test_LAMB_and_NovoGrad_keep_their_layout_for_the_drop_in() -> None:
    for cls in (dropin.FusedLAMB, dropin.FusedNovoGrad, dropin.FusedMixedPrecisionLamb):
        ours = params()
        fused = cls(ours)
        take_steps(fused, ours, 2)
        state = fused.state_dict()
        converted, report = convert_state({"optimizer": state})
        assert converted["optimizer"] is state
        assert any("amp_migrate.apex.optimizers" in note.text for note in report.notes)
        assert optimizer_state(state, cls) is state
        with pytest.raises(CannotConvert, match="AdamW can't continue"):
            optimizer_state(state, torch.optim.AdamW)


def test_tensors_in_the_groups_of_NovoGrad_survive() -> None:
    ours = params()
    fused = dropin.FusedNovoGrad(ours)
    take_steps(fused, ours, 2)
    norms = fused.state_dict()["param_groups"][0]["exp_avg_sq"]
    converted, _ = convert_state(
        {"optimizer": fused.state_dict(), "amp": {"loss_scaler0": {"loss_scale": 2.0, "unskipped": 1}}}
    )
    assert all(a is b for a, b in zip(converted["optimizer"]["param_groups"][0]["exp_avg_sq"], norms))


def test_empty_momentum_buffers_of_FusedSGD_go_and_others_stay() -> None:
    empty = sgd_state([torch.zeros(3), torch.zeros(2)], momentum=0.0)
    assert convert_state(empty)[0]["state"] == {}
    full = sgd_state(params(), momentum=0.0)
    assert convert_state(full)[0] is full
    moving = sgd_state([torch.zeros(3)])
    assert convert_state(moving)[0] is moving


@pytest.mark.parametrize("make", [adam_state, fused_state, sgd_state])
def test_ids_become_numbers_in_the_order_of_the_groups(make: Any) -> None:
    plain = make(params())
    ids = [140584248124032, 140584248123952, 140584248124112]
    (group,) = plain["param_groups"]
    saved = {
        "state": {ids[i]: plain["state"][i] for i in (2, 0, 1)},
        "param_groups": [{**group, "params": ids[:1]}, {**group, "params": ids[1:]}],
    }
    converted, _ = convert_state(saved)
    assert [g["params"] for g in converted["param_groups"]] == [[0], [1, 2]]
    for i in range(3):
        for key, value in plain["state"][i].items():
            assert converted["state"][i][key] is value
    assert convert_state(converted)[0] is converted


def test_frozen_parameters_keep_their_number_and_have_no_state() -> None:
    plain = sgd_state(params())
    ids = [903, 901, 902]
    saved = {
        "state": {903: plain["state"][0], 902: plain["state"][2]},
        "param_groups": [{**plain["param_groups"][0], "params": ids}],
    }
    assert sorted(convert_state(saved)[0]["state"]) == [0, 2]


def test_names_as_keys_and_numbers_stay() -> None:
    plain = sgd_state(params())
    named = {
        "state": {f"p{i}": entry for i, entry in plain["state"].items()},
        "param_groups": [{**plain["param_groups"][0], "params": ["p0", "p1", "p2"]}],
    }
    assert convert_state(named)[0] is named


def test_an_unknown_optimizer_stays() -> None:
    state = {
        "state": {0: {"step": 3, "exp_avg": torch.ones(2), "slow_buffer": torch.ones(2)}},
        "param_groups": [
            {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "bias_correction": True, "k": 6, "params": [0]}
        ],
    }
    assert convert_state(state)[0] is state
    with pytest.raises(CannotConvert, match="unknown here"):
        optimizer_state(state)


def test_torchs_Adam_becomes_FusedAdams_and_comes_back() -> None:
    theirs = params()
    adam = torch.optim.AdamW(theirs, lr=0.01, weight_decay=0.1)
    take_steps(adam, theirs, 3)
    saved = snapshot(adam.state_dict())
    fused_layout = optimizer_state(saved, dropin.FusedAdam)
    assert fused_layout["param_groups"][0]["step"] == 3
    ours = [torch.nn.Parameter(p.detach().clone()) for p in theirs]
    fused = dropin.FusedAdam(ours)
    fused.load_state_dict(copy.deepcopy(fused_layout))
    take_steps(adam, theirs, 2, 3)
    take_steps(fused, ours, 2, 3)
    assert all(torch.allclose(a, b, rtol=0, atol=LIMIT) for a, b in zip(ours, theirs))
    for index, entry in optimizer_state(fused_layout, "AdamW")["state"].items():
        assert float(entry.pop("step")) == float(saved["state"][index].pop("step"))
        assert equal(entry, saved["state"][index])


@pytest.mark.parametrize(("change", "match"), [({"amsgrad": True}, "amsgrad"), ({"maximize": True}, "maximize")])
def test_what_FusedAdam_lacks_is_refused(change: Any, match: str) -> None:
    with pytest.raises(CannotConvert, match=match):
        optimizer_state(adam_state(params(), group=change), "FusedAdam")


def test_different_steps_in_a_group_are_refused_for_FusedAdam() -> None:
    state = adam_state(params())
    state["state"][1]["step"] = 8
    with pytest.raises(CannotConvert, match=r"stepped \[3, 8\] times"):
        optimizer_state(state, "FusedAdam")


@pytest.mark.parametrize("state", [{"a": 1}, [1], dict(weights())])
def test_what_is_no_optimizers_state_is_refused(state: Any) -> None:
    with pytest.raises(CannotConvert, match="no optimizer's state_dict"):
        optimizer_state(state)


def test_FusedAdagrads_groups_fit_torch_before_the_first_step() -> None:
    groups = [{"lr": 0.1, "eps": 1e-10, "weight_decay": 0.0, "params": [0, 1, 2]}]
    converted, report = convert_state({"optimizer": {"state": {}, "param_groups": groups}})
    (group,) = converted["optimizer"]["param_groups"]
    assert group["lr_decay"] == 0 and group["initial_accumulator_value"] == 0
    assert any(note.kind.value == "lost" and "3 parameters had no gradient" in note.text for note in report.notes)


@pytest.mark.parametrize(
    "settings",
    [
        {"grad_averaging": True, "max_grad_norm": 1.0, "trust_clip": False, "always_adapt": False},
        {"max_grad_norm": 0.0, "max_coeff": 10.0, "min_coeff": 0.01},
    ],
)
def test_the_LAMBs_of_timm_and_DeepSpeed_are_not_taken_for_Apexs_optimizers(settings: Any) -> None:
    state = fused_state(params(), **settings)
    converted, report = convert_state(state)
    assert converted is state
    assert not any("Fused" in note.text for note in report.notes)


def test_a_bias_correction_of_0_is_none() -> None:
    _, report = convert_state(fused_state(params(), bias_correction=0))
    assert any(note.kind.value == "lost" and note.place == "param_groups[0]" for note in report.notes)


def test_no_steps_are_claimed_for_a_state_without_moments() -> None:
    state = fused_state(params())
    state["state"] = {}
    _, report = convert_state(state)
    assert not any("step for each parameter" in note.text for note in report.notes)


def test_a_target_that_is_no_class_is_refused_by_what_it_is() -> None:
    with pytest.raises(CannotConvert, match="None can't continue"):
        optimizer_state(adam_state(params()), None)
