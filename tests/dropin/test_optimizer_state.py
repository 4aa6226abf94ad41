"""State dicts of the optimizers: Apex's layout written and read, torch's read, Apex's own files continued."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F

from amp_migrate import notices
from amp_migrate.apex import optimizers
from amp_migrate.apex.contrib import optimizers as contrib
from amp_migrate.apex.contrib.optimizers._flat_layout import unflattened

from . import recorded_checkpoints as recorded
from .test_optimizer_formulas import SHAPES, gradient, start, take_steps

CLASSES = {
    "fusedadam": optimizers.FusedAdam,
    "fusedlamb": optimizers.FusedLAMB,
    "fusednovograd": optimizers.FusedNovoGrad,
    "fusedsgd": optimizers.FusedSGD,
    "fusedadagrad": optimizers.FusedAdagrad,
}
APEX_FILES = sorted(name for name in recorded.SAMPLES if name.startswith("apex_"))
OLD_FILES = sorted(name for name in recorded.SAMPLES if name.startswith("oldfp16_"))
#: one of each, with settings that a copy must keep
MAKERS = {
    "adam": lambda p: optimizers.FusedAdam(p, lr=0.01, weight_decay=0.1, adam_w_mode=False, set_grad_none=False),
    "capturable": lambda p: optimizers.FusedAdam(p, lr=0.01, capturable=True, master_weights=True),
    "sgd": lambda p: optimizers.FusedSGD(p, lr=0.01, momentum=0.9, weight_decay=0.1, wd_after_momentum=True),
    "adagrad": lambda p: optimizers.FusedAdagrad(p, weight_decay=0.1, adagrad_w_mode=True),
    "lamb": lambda p: optimizers.FusedLAMB(p, weight_decay=0.0, use_nvlamb=True),
    "mixed_lamb": lambda p: optimizers.FusedMixedPrecisionLamb(
        p, adam_w_mode=False, reduced_precision_dtype=torch.half
    ),
    "novograd": lambda p: optimizers.FusedNovoGrad(p, weight_decay=0.1, reg_inside_moment=True, norm_type=0),
    "old_adam": lambda p: contrib.FusedAdam(p, weight_decay=0.1, eps_inside_sqrt=True),
    "contrib_lamb": lambda p: contrib.FusedLAMB(p, adam_w_mode=False),
}


def step(net, optimizer, i):
    x, y = recorded.batch(i)
    optimizer.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def built(name):
    sample = recorded.SAMPLES[name]
    net = recorded.TinyNet()
    optimizer = CLASSES[name.split("_")[-1]](recorded.groups_of(net), **sample["settings"])
    return sample, net, optimizer, recorded.load(sample)


@pytest.mark.parametrize("name", APEX_FILES)
def test_a_file_of_Apex_continues_with_Apexs_next_step(name) -> None:
    sample, net, optimizer, saved = built(name)
    net.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    assert step(net, optimizer, 99) == pytest.approx(sample["loss"], abs=1e-6)
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for param, expected, of in zip(params, sample["next"], sample["order"]):
        if of != "fc1.bias":  # its true gradient is zero: rounding noise decides
            assert torch.allclose(param.detach().reshape(-1), torch.tensor(expected).reshape(-1), rtol=0, atol=6e-8)


@pytest.mark.parametrize("name", APEX_FILES)
def test_the_same_training_writes_the_same_file(name) -> None:
    _, net, optimizer, saved = built(name)
    for i in range(4):
        step(net, optimizer, i)
    ours, theirs = optimizer.state_dict(), saved["optimizer"]
    assert [list(group) for group in ours["param_groups"]] == [list(group) for group in theirs["param_groups"]]
    for mine, group in zip(ours["param_groups"], theirs["param_groups"]):
        assert {k: type(v) for k, v in mine.items()} == {k: type(v) for k, v in group.items()}
        assert mine.get("step") == group.get("step")
    assert list(ours["state"]) == list(theirs["state"])
    for i, state in theirs["state"].items():
        assert list(ours["state"][i]) == list(state)
        for key, value in state.items():
            assert ours["state"][i][key].dtype == value.dtype
            if i != 2:  # fc1.bias
                assert torch.allclose(ours["state"][i][key], value, rtol=1e-3, atol=1e-6)
    for key, value in saved["model"].items():
        if key not in ("fc1.bias", "bn.running_mean"):
            assert torch.allclose(net.state_dict()[key].float(), value.float(), rtol=0, atol=1e-6)


def old_training(name, net):
    optimizer = contrib.FP16_Optimizer(
        contrib.FusedAdam(net.parameters(), lr=0.01, weight_decay=0.01, max_grad_norm=1.0),
        **({"static_loss_scale": 128.0} if "static" in name else {"dynamic_loss_scale": True}),
        verbose=False,
    )
    for i in range(4):
        x, y = recorded.batch(i)
        optimizer.zero_grad()
        first, second = net.fc1, net.fc2
        hidden = torch.tanh(F.linear(x, first.weight.float(), first.bias.float()))
        loss = F.mse_loss(F.linear(hidden, second.weight.float(), second.bias.float()), y)
        optimizer.backward(loss * float("inf") if i == 1 and "dynamic" in name else loss)
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("name", OLD_FILES)
def test_the_old_FP16_Optimizer_writes_and_reads_Apexs_file(name) -> None:
    sample, saved = recorded.SAMPLES[name], recorded.load(recorded.SAMPLES[name])
    net = recorded.TinyNet(batchnorm=False).half()
    optimizer = old_training(name, net)
    ours, theirs = optimizer.state_dict(), saved["optimizer"]
    assert list(ours) == list(theirs)
    numbers = [key for key, value in theirs.items() if isinstance(value, (int, float))]
    assert {key: ours[key] for key in numbers} == {key: theirs[key] for key in numbers}
    assert ours["optimizer_state_dict"]["param_groups"] == theirs["optimizer_state_dict"]["param_groups"]
    for master, mine in zip(sample["masters"], optimizer.fp32_groups[0]):
        assert torch.allclose(mine.reshape(-1), torch.tensor(master).reshape(-1), rtol=0, atol=1e-4)

    other = contrib.FP16_Optimizer(contrib.FusedAdam(recorded.TinyNet(batchnorm=False).half().parameters()))
    other.load_state_dict(theirs)
    assert (other.cur_scale, other.cur_iter) == (sample["scale"], sample["cur_iter"])
    for master, mine in zip(sample["masters"], other.fp32_groups[0]):
        assert torch.equal(mine.reshape(-1), torch.tensor(master).reshape(-1))
    assert [s["step"] for s in other.state.values()] == [
        s["step"] for s in theirs["optimizer_state_dict"]["state"].values()
    ]


def test_flat_masters_of_early_2019_are_cut_up() -> None:
    groups = [[torch.zeros(2, 3), torch.zeros(4)], [torch.zeros(5)]]
    flat = {
        "dynamic_loss_scale": False,
        "cur_scale": 128.0,
        "cur_iter": 4,
        "fp32_groups_flat": [torch.arange(10.0), torch.arange(5.0)],
        "optimizer_state_dict": {
            "state": {7: {"step": 4, "exp_avg": torch.arange(10.0), "exp_avg_sq": torch.arange(10.0) * 2}},
            "param_groups": [{"lr": 0.1, "params": [7]}, {"lr": 0.2, "params": [9]}],
        },
    }
    cut = unflattened(flat, groups)
    assert [[t.shape for t in group] for group in cut["fp32_groups"]] == [[t.shape for t in group] for group in groups]
    inner = cut["optimizer_state_dict"]
    assert [group["params"] for group in inner["param_groups"]] == [[0, 1], [2]]
    assert inner["state"][1]["step"] == 4 and inner["state"][1]["exp_avg_sq"].tolist() == [12.0, 14.0, 16.0, 18.0]
    with pytest.raises(ValueError, match="elements"):
        unflattened(flat, [groups[1], groups[1]])


TORCH = [
    (torch.optim.AdamW, optimizers.FusedAdam, {"lr": 0.01, "weight_decay": 0.1}, {}, {}),
    (torch.optim.Adam, optimizers.FusedAdam, {"lr": 0.01, "weight_decay": 0.1}, {}, {"adam_w_mode": False}),
    (torch.optim.SGD, optimizers.FusedSGD, {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1}, {}, {}),
    (torch.optim.SGD, optimizers.FusedSGD, {"lr": 0.01}, {}, {}),
    (torch.optim.Adagrad, optimizers.FusedAdagrad, {"lr": 0.01, "weight_decay": 0.1}, {"eps": 1e-10}, {}),
]


@pytest.mark.parametrize("theirs, ours, settings, only_theirs, only_ours", TORCH)
def test_a_torch_optimizers_state_continues(theirs, ours, settings, only_theirs, only_ours) -> None:
    params, others = start(), start()
    before = theirs(params, **settings, **only_theirs)
    take_steps(before, params, 3)
    for other, param in zip(others, params):
        other.data.copy_(param.data)
    after = ours(others, **{**settings, "lr": 1.0}, **only_ours)
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    take_steps(before, params, 3, first=4)
    take_steps(after, others, 3, first=4)
    assert all(torch.allclose(p, q, rtol=0, atol=1e-6) for p, q in zip(params, others))
    assert "fused" not in after.param_groups[0] and "maximize" not in after.param_groups[0]
    assert all("step" not in state for state in after.state.values())


def test_AdamW_continues_a_FusedAdam_with_the_documented_lines() -> None:
    params, others = start(), start()
    fused = optimizers.FusedAdam(params, lr=0.01, weight_decay=0.1)
    take_steps(fused, params, 3)
    saved = copy.deepcopy(fused.state_dict())
    for group in saved["param_groups"]:
        for i in group["params"]:
            if i in saved["state"]:
                saved["state"][i]["step"] = torch.tensor(float(group["step"]))
    after = torch.optim.AdamW(others)
    after.load_state_dict(saved)
    for other, param in zip(others, params):
        other.data.copy_(param.data)
    take_steps(fused, params, 3, first=4)
    take_steps(after, others, 3, first=4)
    assert all(torch.allclose(p, q, rtol=0, atol=1e-6) for p, q in zip(params, others))


@pytest.mark.parametrize(
    "make, ours, key",
    [
        (lambda p: torch.optim.Adam(p, amsgrad=True), optimizers.FusedAdam, "amsgrad"),
        (lambda p: torch.optim.Adagrad(p, lr_decay=0.1), optimizers.FusedAdagrad, "lr_decay"),
    ],
)
def test_settings_that_do_not_exist_here_are_refused(make, ours, key) -> None:
    params = start()
    saved = make(params).state_dict()
    optimizer = ours(params)
    with pytest.raises(RuntimeError, match=key):
        optimizer.load_state_dict(saved)
    saved["param_groups"][0][key] = False
    optimizer.load_state_dict(saved)


def test_different_step_counts_in_a_group_are_said(monkeypatch) -> None:
    monkeypatch.setattr(notices, "_already_said", set())
    params = start()
    torch_adam = torch.optim.AdamW(params)
    take_steps(torch_adam, params, 2)
    saved = torch_adam.state_dict()
    saved["state"][0]["step"] = 5
    optimizer = optimizers.FusedAdam(params)
    with pytest.warns(notices.MigrationNotice, match="2 to 5 times"):
        optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["step"] == 5


def test_the_other_kind_of_weight_decay_is_said(monkeypatch) -> None:
    monkeypatch.setattr(notices, "_already_said", set())
    params = start()
    saved = torch.optim.AdamW(params, weight_decay=0.1).state_dict()
    saved["param_groups"][0]["decoupled_weight_decay"] = True  # torch 2.7 and newer
    with pytest.warns(notices.MigrationNotice, match="adam_w_mode=True"):
        optimizers.FusedAdam(params, adam_w_mode=False).load_state_dict(saved)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizers.FusedAdam(params).load_state_dict(saved)


def halves():
    return [torch.nn.Parameter(p.detach().half()) for p in start()]


def take_half_steps(optimizer, params, steps=3):
    for t in range(1, steps + 1):
        for i, p in enumerate(params):
            p.grad = gradient(i, t).half()
        optimizer.step()


@pytest.mark.parametrize("name", sorted(set(MAKERS) - {"old_adam"}))
def test_state_of_half_parameters_keeps_its_dtype_through_a_file(name, tmp_path) -> None:
    expected = torch.float32 if name in ("adam", "capturable", "mixed_lamb") else torch.half
    params, others = halves(), halves()
    optimizer, other = MAKERS[name](params), MAKERS[name](others)
    take_half_steps(optimizer, params)
    torch.save(optimizer.state_dict(), tmp_path / "o.pt")
    other.load_state_dict(torch.load(tmp_path / "o.pt"))
    for param, twin in zip(params, others):
        for key, value in optimizer.state[param].items():
            assert value.dtype == other.state[twin][key].dtype == expected
            assert torch.equal(value, other.state[twin][key])


@pytest.mark.parametrize("name", sorted(MAKERS))
@pytest.mark.parametrize("how", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["deepcopy", "pickle"])
def test_a_copy_continues_like_the_original(name, how) -> None:
    params = start()
    optimizer = MAKERS[name](params)
    take_steps(optimizer, params, 2)
    for p in params:
        p.grad = None
    twin = how(optimizer)
    theirs = [p for group in twin.param_groups for p in group["params"]]
    assert theirs[0] is not params[0]
    take_steps(optimizer, params, 3, first=3)
    take_steps(twin, theirs, 3, first=3)
    assert all(torch.equal(p, q) for p, q in zip(params, theirs))
    assert twin.set_grad_none == optimizer.set_grad_none


def test_a_pickle_of_Apexs_class_has_no_settings_and_gets_the_defaults() -> None:
    params = start()
    made = optimizers.FusedAdam(params)
    state = {key: made.__getstate__()[key] for key in ("defaults", "state", "param_groups")}
    old = object.__new__(optimizers.FusedAdam)
    old.__setstate__(state)
    take_steps(old, params, 1)
    assert (old.adam_w_mode, old.set_grad_none, old.capturable) == (1, True, False)


def test_NovoGrad_keeps_norms_in_the_group_by_dtype() -> None:
    params = [*start()[:2], *halves()[2:]]
    optimizer = optimizers.FusedNovoGrad(params)
    for i, p in enumerate(params):
        p.grad = gradient(i, 1).to(p.dtype)
    optimizer.step()
    of_half, of_float = optimizer.state_dict()["param_groups"][0]["exp_avg_sq"]
    assert of_half.dtype == of_float.dtype == torch.float32
    assert torch.allclose(of_half, torch.stack([p.grad.float().norm() for p in params[2:]]))
    assert torch.allclose(of_float, torch.stack([p.grad.norm() for p in params[:2]]))
    assert all(list(state) == ["exp_avg"] for state in optimizer.state.values())


def test_NovoGrad_loads_what_was_saved_before_its_first_step() -> None:
    params = start()
    optimizer = optimizers.FusedNovoGrad(params)
    optimizer.load_state_dict(optimizers.FusedNovoGrad(start()).state_dict())
    take_steps(optimizer, params, 1)


def test_NovoGrad_says_so_when_other_parameters_have_gradients() -> None:
    params = start()
    optimizer = optimizers.FusedNovoGrad(params)
    take_steps(optimizer, params[:2], 1)
    with pytest.raises(RuntimeError, match="new optimizer"):
        take_steps(optimizer, params, 1)


def test_capturable_and_plain_FusedAdam_load_each_others_files() -> None:
    params, others = start(), start()
    plain, capturable = optimizers.FusedAdam(params, lr=0.01), optimizers.FusedAdam(others, lr=0.5, capturable=True)
    take_steps(plain, params, 2)
    take_steps(capturable, others, 1)
    for other, param in zip(others, params):
        other.data.copy_(param.data)
    capturable.load_state_dict(copy.deepcopy(plain.state_dict()))
    group = capturable.param_groups[0]
    assert (group["lr"].dtype, group["step"].dtype, group["step"].tolist()) == (torch.float32, torch.int32, [2])
    back = optimizers.FusedAdam(start())
    back.load_state_dict(capturable.state_dict())
    assert back.param_groups[0]["step"] == 2
    take_steps(plain, params, 2, first=3)
    take_steps(capturable, others, 2, first=3)
    assert all(torch.allclose(p, q, rtol=0, atol=1e-6) for p, q in zip(params, others))


def test_groups_of_another_length_raise_as_in_torch() -> None:
    saved = optimizers.FusedAdam(start()).state_dict()
    with pytest.raises(ValueError):
        optimizers.FusedAdam(start()[: len(SHAPES) - 1]).load_state_dict(saved)
