"""``fp16_utils``: as real Apex did, recorded; and files that real Apex wrote."""

from __future__ import annotations

import copy
import importlib
import io
import json
import math
import pickle
import sys
from pathlib import Path
from typing import Any, Iterator

import pytest
import torch

import amp_migrate.apex.fp16_utils as fp16
from amp_migrate.aliases import AliasFinder
from amp_migrate.apex.amp.scaler import LossScaler
from amp_migrate.apex.fp16_utils.fp16util import to_python_float

from .fp16_scenarios import SCENARIOS, TRACES, Squares, sgd

CHECKPOINTS = Path(__file__).resolve().parents[2] / "fixtures" / "checkpoints"


def differences(expected: Any, actual: Any, path: str = "") -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(actual, dict) and set(expected) == set(actual):
        for key in expected:
            yield from differences(expected[key], actual[key], f"{path}/{key}")
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for index, pair in enumerate(zip(expected, actual)):
            yield from differences(*pair, path=f"{path}/{index}")
    elif isinstance(expected, float) and isinstance(actual, float):
        if not math.isclose(expected, actual, rel_tol=1e-6, abs_tol=5e-7):
            yield f"{path}: {expected} {actual}"
    elif expected != actual:
        yield f"{path}: {expected} {actual}"


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_fp16_optimizer_does_what_real_apex_did(name: str) -> None:
    expected = json.loads(TRACES.read_text())[name]
    actual = json.loads(json.dumps(SCENARIOS[name](fp16)))
    assert not list(differences(expected, actual))


def test_an_overflow_is_reported_as_apex_did(capsys: Any) -> None:
    SCENARIOS["dynamic"](fp16)
    out = capsys.readouterr().out
    assert "Gradient overflow.  Skipping step, reducing loss scale to 8192.0" in out


def test_masters_take_the_places_of_half_parameters() -> None:
    model = Squares()
    inner = sgd(model)
    optimizer = fp16.FP16_Optimizer(inner, verbose=False)
    assert optimizer.optimizer is inner and optimizer.param_groups is inner.param_groups
    a, c, b, frozen = (p for g in optimizer.param_groups for p in g["params"])
    assert (a.dtype, b.dtype) == (torch.float32, torch.float32) and a is not model.a
    assert c is model.c and frozen is model.frozen
    assert optimizer.fp16_groups == [[model.a], [model.b]]
    assert [g[0] is m for g, m in zip(optimizer.fp32_from_fp16_groups, (a, b))] == [True, True]
    assert optimizer.fp32_from_fp32_groups == [[model.c], []]


def test_state_that_the_optimizer_had_goes_to_the_masters() -> None:
    model = Squares()
    inner = sgd(model)
    model(0.5).backward()
    inner.state[model.a]["momentum_buffer"] = torch.ones(4).half()
    optimizer = fp16.FP16_Optimizer(inner, verbose=False)
    master = optimizer.param_groups[0]["params"][0]
    assert model.a not in optimizer.state
    assert optimizer.state[master]["momentum_buffer"].dtype == torch.float32


def test_other_dtypes_are_refused() -> None:
    param = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    with pytest.raises(TypeError, match="float64"):
        fp16.FP16_Optimizer(torch.optim.SGD([param], lr=1.0), verbose=False)


def test_pickling_the_optimizer_is_refused() -> None:
    optimizer = fp16.FP16_Optimizer(sgd(Squares()), verbose=False)
    with pytest.raises(RuntimeError, match="state_dict"):
        pickle.dumps(optimizer)
    with pytest.raises(RuntimeError, match="load_state_dict"):
        fp16.FP16_Optimizer.__new__(fp16.FP16_Optimizer).__setstate__({})


def test_verbose_says_what_becomes_of_the_parameters(capsys: Any) -> None:
    fp16.FP16_Optimizer(sgd(Squares()), verbose=False)
    assert capsys.readouterr().out == ""
    fp16.FP16_Optimizer(sgd(Squares()))
    assert "float16" in capsys.readouterr().out


def test_a_static_scale_never_skips() -> None:
    model = Squares()
    optimizer = fp16.FP16_Optimizer(sgd(model), static_loss_scale=2.0, verbose=False)
    optimizer.backward(model(0.5) * float("inf"))
    optimizer.step()
    assert not optimizer.overflow and not torch.isfinite(model.a.float()).all()


def test_an_overflow_is_forgotten_at_the_next_backward() -> None:
    model = Squares()
    optimizer = fp16.FP16_Optimizer(sgd(model), dynamic_loss_scale=True, verbose=False)
    optimizer.backward(model(0.5) * float("inf"))
    assert optimizer.overflow and optimizer.clip_master_grads(1.0) == -1
    optimizer.zero_grad(set_grads_to_None=True)
    optimizer.update_master_grads()  # without a gradient to look at
    assert not optimizer.overflow and optimizer.loss_scale == 32768.0


def test_loading_does_not_tie_two_optimizers_together() -> None:
    first = fp16.FP16_Optimizer(sgd(Squares()), dynamic_loss_scale=True, verbose=False)
    second = fp16.FP16_Optimizer(sgd(Squares()), dynamic_loss_scale=True, verbose=False)
    second.load_state_dict(first.state_dict())
    second.loss_scale = 2.0
    assert first.loss_scale == 65536.0


def test_the_state_survives_torch_save() -> None:
    model = Squares()
    optimizer = fp16.FP16_Optimizer(sgd(model), dynamic_loss_scale=True, verbose=False)
    optimizer.backward(model(0.5) * 2.0**-8)
    optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    loaded = load(file)
    other = fp16.FP16_Optimizer(sgd(Squares()), dynamic_loss_scale=True, verbose=False)
    other.load_state_dict(loaded)
    assert (other.loss_scale, other.loss_scaler._unskipped) == (65536.0, 1)
    assert torch.equal(other.all_fp32_from_fp16_params[0], optimizer.all_fp32_from_fp16_params[0])


def test_a_state_without_a_scaler_is_refused() -> None:
    optimizer = fp16.FP16_Optimizer(sgd(Squares()), verbose=False)
    with pytest.raises(TypeError, match="amp_migrate.convert"):
        optimizer.load_state_dict({**optimizer.state_dict(), "loss_scaler": 1.0})


@pytest.mark.parametrize("window", [3, 7])
def test_a_scaler_of_2018_goes_on_as_it_would_have(window: int) -> None:
    generator = torch.Generator().manual_seed(window)
    old = fp16.DynamicLossScaler(init_scale=2.0**28, scale_window=window)
    for _ in range(40):
        old.update_scale(bool(torch.rand(1, generator=generator) < 0.2))
    state = fp16.FP16_Optimizer(sgd(Squares()), dynamic_loss_scale=True, verbose=False).state_dict()
    optimizer = fp16.FP16_Optimizer(sgd(Squares()), dynamic_loss_scale=True, verbose=False)
    optimizer.load_state_dict({**state, "loss_scaler": copy.deepcopy(old)})
    for _ in range(60):
        overflow = bool(torch.rand(1, generator=generator) < 0.2)
        old.update_scale(overflow)
        optimizer.loss_scaler.clear_overflow_state()
        optimizer.loss_scaler._has_overflow = overflow
        assert optimizer.loss_scaler.update_scale() == overflow
        assert optimizer.loss_scale == old.loss_scale


# --- files of real Apex


class TinyNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.bn, self.fc2 = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)


def load(file: Any) -> Any:
    """``torch.load`` of a file with objects in it, on every torch."""
    try:
        return torch.load(file, map_location="cpu", weights_only=False)
    except TypeError:  # before torch 1.13
        if hasattr(file, "seek"):
            file.seek(0)
        return torch.load(file, map_location="cpu")


@pytest.fixture
def as_apex() -> Iterator[None]:
    """``apex.fp16_utils`` and ``apex.amp`` under the names that are in the files."""
    finder = AliasFinder("apex", "amp_migrate.apex")
    before = {name: module for name, module in sys.modules.items() if (name + ".").startswith("apex.")}
    for name in before:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    importlib.invalidate_caches()
    yield
    sys.meta_path.remove(finder)  # type: ignore[arg-type]
    for name in [name for name in sys.modules if (name + ".").startswith("apex.")]:
        del sys.modules[name]
    sys.modules.update(before)


def samples() -> list[Any]:
    records = json.loads((Path(__file__).parent / "fp16_utils.json").read_text())["records"]
    return [
        pytest.param(CHECKPOINTS / file["file"], record["expected"], id=file["file"])
        for record in records
        for file in record["files"]
    ]


@pytest.mark.parametrize(("path", "expected"), samples())
def test_files_of_real_apex_load_and_go_on(path: Path, expected: dict[str, Any], as_apex: None) -> None:
    saved = load(str(path))
    model = fp16.convert_network(TinyNet(), torch.half)
    model.load_state_dict(saved["model"])
    optimizer = fp16.FP16_Optimizer(
        torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5), dynamic_loss_scale=True, verbose=False
    )
    optimizer.load_state_dict(saved["optimizer"])
    assert type(optimizer.loss_scaler) is LossScaler
    assert optimizer.loss_scale == expected["scale"]
    assert optimizer.loss_scaler._scale_seq_len == expected.get("scale_window", optimizer.loss_scaler._scale_seq_len)
    if expected.get("unskipped") is not None:
        assert optimizer.loss_scaler._unskipped == expected["unskipped"]
    (group,) = optimizer.param_groups
    masters = group["params"]
    for master, values in zip(masters, expected["masters_in_optimizer_order"]):
        assert torch.equal(master.flatten(), torch.tensor(values))
    # one step with known gradients, against SGD's formula on the saved masters and momentum
    before = [master.detach().clone() for master in masters]
    saved_states = copy.deepcopy(
        saved["optimizer"]["optimizer_state_dict"]["state"]
    )  # newer torch steps on it in place
    ids = saved["optimizer"]["optimizer_state_dict"]["param_groups"][0]["params"]
    scale = optimizer.loss_scale
    optimizer.zero_grad()
    optimizer.backward(sum((p.float() * 2.0**-14).sum() for p in model.parameters()))
    assert optimizer.loss_scale == scale and not optimizer.overflow
    optimizer.step()
    for master, old, index in zip(masters, before, ids):
        buffer = saved_states.get(index, {}).get("momentum_buffer", torch.zeros_like(old))
        moved = group["momentum"] * buffer + 2.0**-14 + group["weight_decay"] * old
        assert torch.allclose(master, old - group["lr"] * moved, rtol=0, atol=1e-7)
    assert torch.equal(model.fc1.weight.data, masters[0].data.half())


# --- models and parameter lists


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4, affine=False), torch.nn.LSTM(4, 2)
    )


def dtypes(model: torch.nn.Module) -> dict[str, torch.dtype]:
    return {name: value.dtype for name, value in model.state_dict().items() if value.is_floating_point()}


@pytest.mark.parametrize("convert", [fp16.network_to_half, fp16.FP16Model], ids=["network_to_half", "FP16Model"])
def test_batchnorm_with_parameters_stays_in_float32(convert: Any) -> None:
    prefix = "1." if convert is fp16.network_to_half else "network."
    found = dtypes(convert(network()))
    assert all(name.startswith(prefix) for name in found)
    full = {name[len(prefix) :] for name, dtype in found.items() if dtype == torch.float32}
    assert full == {"1.weight", "1.bias", "1.running_mean", "1.running_var"}


def test_inputs_are_cast() -> None:
    class Dtypes(torch.nn.Module):
        def forward(self, *inputs: torch.Tensor) -> Any:
            return [x.dtype for x in inputs]

    assert fp16.FP16Model(Dtypes())(torch.ones(1), torch.ones(2)) == [torch.half, torch.half]
    assert fp16.network_to_half(Dtypes())(torch.ones(1)) == [torch.half]
    assert fp16.tofp16()(torch.ones(1)).dtype == torch.half


def test_convert_module_leaves_children_alone_and_takes_gradients() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    fp16.convert_module(model, torch.half)
    assert model[0].weight.dtype == torch.float32
    model[0].weight.grad = torch.ones(2, 2)
    model[0].register_buffer("count", torch.tensor(1))
    fp16.convert_module(model[0], torch.half)
    assert model[0].weight.dtype == model[0].weight.grad.dtype == torch.half
    assert model[0].count.dtype == torch.int64


def test_convert_network_and_bn_convert_float_return_the_module() -> None:
    model = network()
    assert fp16.convert_network(model, torch.half) is model
    model.half()
    assert fp16.BN_convert_float(model) is model
    assert model[1].weight.dtype == torch.float32 and model[2].running_mean.dtype == torch.half


@pytest.mark.parametrize("flat", [False, True])
def test_masters_go_round(flat: bool) -> None:
    model = torch.nn.Linear(2, 3).half()
    model.bias.requires_grad_(True)
    params, masters = fp16.prep_param_lists(model, flat_master=flat)
    assert len(masters) == (1 if flat else 2)
    assert all(m.dtype == torch.float32 and m.requires_grad and m.is_leaf for m in masters)
    for index, param in enumerate(params):
        param.grad = torch.full_like(param, index + 1.0)
    fp16.model_grads_to_master_grads(params, masters, flat_master=flat)
    assert torch.cat([m.grad.flatten() for m in masters]).tolist() == [1.0] * 6 + [2.0] * 3
    for master in masters:
        master.data.zero_().add_(0.5)
    fp16.master_params_to_model_params(params, masters, flat_master=flat)
    assert all((p == 0.5).all() and p.dtype == torch.half for p in params)


def test_a_missing_gradient_is_missing_in_the_masters_too() -> None:
    params, masters = fp16.prep_param_lists(torch.nn.Linear(2, 2).half())
    masters[0].grad = torch.ones(2, 2)
    fp16.model_grads_to_master_grads(params, masters)
    assert [m.grad for m in masters] == [None, None]


def test_masters_of_float32_parameters_are_copies() -> None:
    model = torch.nn.Linear(2, 2)
    _, masters = fp16.prep_param_lists(model)
    masters[0].data.zero_()
    assert model.weight.abs().sum() > 0


def test_joining_several_dtypes_says_what_to_do(capsys: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).half())
    try:
        fp16.prep_param_lists(model, flat_master=True)
    except Exception:
        assert "flat_master=False" in capsys.readouterr().out


def test_small_helpers() -> None:
    assert to_python_float(torch.tensor([2.0])) == 2.0 and to_python_float([3]) == 3
    assert fp16.clip_grad_norm is torch.nn.utils.clip_grad_norm_
    static = fp16.LossScaler(4.0)
    x = torch.ones(2, requires_grad=True)
    static.backward(x.sum())
    assert static.loss_scale == 4.0 and x.grad.tolist() == [4.0, 4.0] and not static.has_overflow([x])
    dynamic = fp16.DynamicLossScaler()
    assert dynamic.loss_scale == 2**32 and not dynamic.has_overflow([x])
    x.grad[0] = float("nan")
    assert dynamic.has_overflow([x]) and dynamic.scale_gradient(None, [x.detach()], None)[0][1] == 2**32
