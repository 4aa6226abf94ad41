"""Files that Apex wrote become what they must, load into native objects, and train on as Apex did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from amp_migrate.convert import Report, convert_file, convert_state, load

from .samples import NEXT_STEP, SAMPLES, Sample, flat, named, net_for, optimizer_for, samples, step
from .trees import GRAD_SCALER, VERSION, equal, torch_load

FACTORS = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
#: a step in a tensor is a float32 in the formulas of torch before 1.12
LIMIT = 6e-8 if VERSION >= (1, 12) else 1.3e-7
AMP = named("apex_o")
WITH_AMP = [s for s in AMP if "amp" in s.layout]
SINGLE = [s for s in WITH_AMP if "multiloss" not in s.name]


def each(found: list[Sample]) -> Any:
    return pytest.mark.parametrize("sample", found, ids=lambda sample: sample.id)


def scalers(sample: Sample) -> list[dict[str, Any]]:
    return [{key: one[key] for key in FACTORS} for one in sample.expected["scalers"]]


def test_there_are_all_samples() -> None:
    assert len(SAMPLES) == 110


@each(SINGLE)
def test_the_scaler_is_native_under_its_key(sample: Sample) -> None:
    converted = load(sample.path)
    assert list(converted) == list(sample.layout)
    assert [converted["amp"]] == scalers(sample) == sample.native["grad_scalers"]


@each([s for s in WITH_AMP if "multiloss" in s.name])
def test_several_scalers_keep_their_names_and_one_can_be_chosen(sample: Sample) -> None:
    assert load(sample.path)["amp"] == {f"loss_scaler{i}": one for i, one in enumerate(scalers(sample))}
    assert load(sample.path, scaler=1)["amp"] == load(sample.path, key="loss_scaler1")["amp"] == scalers(sample)[1]


@each(SINGLE)
def test_the_models_weights_are_carried_in_every_bit(sample: Sample) -> None:
    model = load(sample.path)["model"]
    assert {key: flat(value) for key, value in model.items()} == sample.expected["model_fp32"]
    assert list(model) == list(sample.layout["model"])


@each(SINGLE)
def test_the_optimizers_tensors_are_carried_in_every_bit_under_numbers(sample: Sample) -> None:
    state = load(sample.path)["optimizer"]
    assert [n for group in state["param_groups"] for n in group["params"]] == list(range(6))
    ids = [one for group in sample.layout["optimizer"]["param_groups"] for one in group["params"]]
    for key, entry in sample.expected["optimizer_state_tensors"].items():
        found = state["state"][ids.index(int(key))]
        for name, values in entry.items():
            if name != "step":
                assert flat(found[name]) == values


@each(SINGLE)
def test_the_next_step_is_apexs_next_step(sample: Sample) -> None:
    converted, net = load(sample.path), net_for(sample)
    optimizer, scaler = optimizer_for(sample, net), GRAD_SCALER("cpu") if GRAD_SCALER else None
    net.load_state_dict(converted["model"])
    optimizer.load_state_dict(converted["optimizer"])
    if scaler:
        scaler.load_state_dict(converted["amp"])
    after = sample.expected[NEXT_STEP]
    half = sample.name.startswith(("apex_o2", "apex_o3"))
    loss = step(net, optimizer, scaler, 99)
    assert loss == pytest.approx(after["loss"], abs=2e-3 if half else 1e-6)
    params = [p for group in optimizer.param_groups for p in group["params"]]
    names = sample.expected["optimizer_param_order"]
    for name, param, values in zip(names, params, after["master_params"]):
        if name == "fc1.bias" and "sgd" not in sample.name:
            continue  # its true gradient is zero: rounding noise decides
        limit = 5e-4 if half else LIMIT
        assert torch.allclose(param.detach().reshape(-1), torch.tensor(values).reshape(-1), rtol=0, atol=limit), name
    if sample.name == "apex_o1_sgd" and sample.torch.startswith("1.13") and VERSION >= (1, 13):
        assert [flat(p) for p in params] == after["master_params"]
    if scaler and after["scalers"][0]["_dynamic"]:
        assert [scaler.state_dict()] == [{key: one[key] for key in FACTORS} for one in after["scalers"]]


OLD = [s for s in SAMPLES if s.name.startswith(("fp16utils", "oldfp16"))]


def masters_by_name(sample: Sample) -> dict[str, list[float]]:
    expected = sample.expected
    if "masters" in expected and isinstance(expected["masters"], dict):
        return dict(expected["masters"])
    masters = expected["masters"] if "masters" in expected else expected["masters_in_optimizer_order"]
    return dict(zip(expected["param_order"], masters))


@each(OLD)
def test_the_masters_are_the_models_weights(sample: Sample) -> None:
    model = load(sample.path)["model"]
    masters = masters_by_name(sample)
    assert {key: flat(model[key]) for key in masters} == masters
    assert all(value.dtype == torch.float32 for key, value in model.items() if "num_batches" not in key)
    assert list(model) == list(sample.layout["model"])
    assert not any(value.requires_grad for value in model.values())


@each(OLD)
def test_the_scaler_of_an_FP16_Optimizer_lands_beside_it(sample: Sample) -> None:
    report = Report()
    scaler = load(sample.path, report=report)["scaler"]
    assert scaler["scale"] == sample.expected["scale"]
    for native in sample.native.get("grad_scalers", []):
        assert {key: scaler[key] for key in native} == native
    assert any("'scaler'" in note.text for note in report.notes)
    assert any("static" in note.text for note in report.notes) == ("static" in sample.name)


@each(OLD)
def test_an_FP16_Optimizers_inner_state_loads_and_steps(sample: Sample) -> None:
    converted, net = load(sample.path), net_for(sample)
    optimizer = optimizer_for(sample, net)
    net.load_state_dict(converted["model"])
    optimizer.load_state_dict(converted["optimizer"])
    x = torch.zeros(8, 3)
    net(x).sum().backward() if hasattr(net, "bn") else net.fc2(net.fc1(x)).sum().backward()
    optimizer.step()
    for name, values in masters_by_name(sample).items():
        assert torch.allclose(dict(net.named_parameters())[name].detach().reshape(-1), torch.tensor(values), atol=2.0)


@each([s for s in OLD if "flat" in s.name])
def test_flat_state_is_cut_like_the_masters(sample: Sample) -> None:
    converted = load(sample.path)
    names = [name for group in sample.expected["group_param_names_in_flat_order"] for name in group]
    state = converted["optimizer"]["state"]
    assert [group["params"] for group in converted["optimizer"]["param_groups"]] == [[0, 1], [2, 3]]
    for index, name in enumerate(names):
        assert flat(state[index]["exp_avg"]) == sample.expected["exp_avg"][name]
        assert list(state[index]["exp_avg"].shape) == sample.expected["shapes"][name]
    weights = [converted["model"][name] for name in ("fc1.weight", "fc2.weight")]
    assert weights[0].data_ptr() + 12 * 4 == weights[1].data_ptr()  # views of the flat buffer


@each(named("dle_bert"))
def test_master_params_win_over_the_rounded_model(sample: Sample) -> None:
    converted = load(sample.path)
    model = converted["model"]
    assert {key: flat(model[key]) for key in sample.expected["masters_by_name"]} == sample.expected["masters_by_name"]
    assert list(converted) == ["model", "optimizer", "files", "epoch", "data_loader"]
    optimizer = optimizer_for(sample, net_for(sample))
    optimizer.load_state_dict(converted["optimizer"])


@each(named("apex_o2_prehook"))
def test_half_weights_without_masters_stay_half(sample: Sample) -> None:
    converted, net = load(sample.path), net_for(sample)
    assert list(converted) == ["model", "optimizer"]
    assert converted["model"]["fc1.weight"].dtype == torch.half
    net.load_state_dict(converted["model"])
    assert {key: flat(value) for key, value in net.state_dict().items()} == sample.expected["model_as_fp32"]


@each(named("wholemodel"))
def test_a_whole_model_becomes_its_state_dict(sample: Sample) -> None:
    report = Report()
    state = load(sample.path, report=report)
    expected = sample.expected
    assert list(state) == list(expected.get("state_dict_keys", expected.get("state_dict", {})))
    for key, value in expected.get("state_dict", {}).items():
        assert flat(state[key]) == flat(torch.tensor(value))
    assert report.layouts == ["pickled nn.Module"]
    middle = torch.nn.LayerNorm(4) if "layernorm" in sample.name else torch.nn.BatchNorm1d(4)
    last = [torch.nn.Linear(4, 2)] if "layernorm" in sample.name else []
    torch.nn.Sequential(torch.nn.Linear(3, 4), middle, *last).load_state_dict(state)


@each(named("wholemodel"))
def test_a_trusted_whole_model_comes_with_torchs_layers(sample: Sample) -> None:
    model = load(sample.path, trust=True)
    assert type(model[1]) is (torch.nn.LayerNorm if "layernorm" in sample.name else torch.nn.SyncBatchNorm)
    assert model[1].eps == 1e-5
    plain = load(sample.path)
    assert all(torch.equal(value, plain[key]) for key, value in model.state_dict().items())
    if "layernorm" in sample.name:
        assert model(torch.ones(2, 3)).shape == (2, 2)


@each(SAMPLES)
def test_the_written_file_loads_without_us_and_converting_it_changes_nothing(sample: Sample, tmp_path: Path) -> None:
    target = tmp_path / "native.pt"
    convert_file(sample.path, target)
    written = torch_load(target)
    assert equal(written, load(sample.path))
    again, _ = convert_state(written)
    assert again is written or equal(again, written)
    assert equal(load(target), written)


LOADS_BY_ITSELF = [s for s in samples() if not s.name.startswith(("fp16utils", "wholemodel"))]


@each(LOADS_BY_ITSELF)
def test_a_loaded_checkpoint_converts_as_its_file_does(sample: Sample) -> None:
    saved = torch_load(sample.path, map_location="cpu")
    before = repr(saved)
    converted, report = convert_state(saved)
    assert equal(converted, load(sample.path)) and report.layouts
    assert repr(saved) == before
