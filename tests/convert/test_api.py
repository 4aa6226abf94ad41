"""The public functions: what comes back as the same object, what files give, and how importing stays light."""

from __future__ import annotations

import subprocess
from collections import OrderedDict, defaultdict, namedtuple
from pathlib import Path
from typing import Any, Callable

import pytest
import torch

import amp_migrate.convert as api
from amp_migrate.convert import (
    CannotConvert,
    Options,
    Report,
    Unsafe,
    convert_file,
    convert_state,
    convert_tree,
    load,
    scaler_state,
)
from amp_migrate.convert.layouts.weights import looks_rounded, opt_level
from amp_migrate.convert.live import Live
from amp_migrate.convert.trusted import execute

from .trees import (
    APEX,
    NATIVE,
    VERSION,
    LossScaler,
    adam_state,
    equal,
    fused_state,
    halved,
    seeded,
    torch_load,
    weights,
    wrapped,
)

Point = namedtuple("Point", "x y")


def test_importing_needs_no_torch_and_every_name_is_there(python: Callable[..., Any]) -> None:
    program = (
        "import sys, amp_migrate.convert as c; assert 'torch' not in sys.modules;"
        "[getattr(c, n) for n in c.__all__ if n not in ('load', 'convert_state', 'optimizer_state', 'convert_file')];"
        "c.load, c.convert_file, c.scaler_state({'loss_scaler0': {'loss_scale': 2.0, 'unskipped': 1}});"
        "assert 'torch' not in sys.modules, 'torch is loaded'"
    )
    result: subprocess.CompletedProcess[str] = python("-c", program)
    assert result.returncode == 0, result.stderr
    assert set(api.__all__) <= set(dir(api))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        api.nothing  # noqa: B018


def test_the_functions_stay_functions_after_their_modules_are_loaded() -> None:
    for name in api.__all__:
        assert callable(getattr(api, name))


def test_a_tree_converts_without_torch(python: Callable[..., Any]) -> None:
    program = (
        "import sys; from amp_migrate.convert import Options, Report, convert_tree;"
        "tree = {'amp': {'loss_scaler0': {'loss_scale': 2.0, 'unskipped': 1}}};"
        "assert convert_tree(tree, Options(), Report())['amp']['scale'] == 2.0;"
        "assert 'torch' not in sys.modules"
    )
    result: subprocess.CompletedProcess[str] = python("-c", program)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("options", "match"),
    [({"to": "keras"}, "native, apex"), ({"accumulation_steps": 0}, "from 1"), ({"scaler": -1}, "from 0")],
)
def test_options_that_mean_nothing_are_refused(options: Any, match: str) -> None:
    with pytest.raises(CannotConvert, match=match):
        convert_state({}, **options)
    with pytest.raises(TypeError, match="unexpected"):
        convert_state({}, scalar=1)


def test_what_isnt_touched_comes_back_as_the_same_object() -> None:
    tied = seeded(3)
    view = tied[1:]
    odd = object()
    saved = {
        "amp": dict(APEX),
        "model": OrderedDict(a=tied, b=tied, c=view, d=torch.nn.Parameter(seeded(2))),
        "others": [odd, Point(1, torch.ones(1)), defaultdict(list, a=[1]), {1, 2}, b"x", None, torch.float16],
        "optimizer": fused_state([tied]),
    }
    converted, _ = convert_state(saved)
    assert converted["model"] is saved["model"] and converted["others"] is saved["others"]
    assert converted["optimizer"]["state"][0]["exp_avg"] is saved["optimizer"]["state"][0]["exp_avg"]
    assert saved["amp"] == APEX and "step" not in saved["optimizer"]["state"][0]


def test_containers_that_change_keep_their_kind() -> None:
    saved = OrderedDict(point=Point(dict(APEX), 1), many=defaultdict(dict, amp=dict(APEX)))
    converted, _ = convert_state(saved)
    assert type(converted) is OrderedDict and converted["point"] == Point(NATIVE, 1)
    assert type(converted["many"]) is defaultdict and converted["many"].default_factory is dict


@pytest.mark.filterwarnings("ignore")  # torch deprecates some of them
def test_strange_tensors_pass() -> None:
    tensors = {
        "sparse": torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.ones(2), (4,)),
        "complex": torch.ones(2, dtype=torch.complex64),
        "bfloat16": torch.ones(2, dtype=torch.bfloat16),
        "expanded": torch.ones(1).expand(4),
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 3),
        "gradient": torch.ones(2, requires_grad=True),
        "conj": torch.ones(2, dtype=torch.complex64).conj(),
        "transposed": seeded(2, 3).t(),
        "meta": torch.empty(3, device="meta" if VERSION >= (1, 9) else "cpu"),
        "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    }
    converted, _ = convert_state({"amp": dict(APEX), "model": tensors, "list": list(tensors.values())})
    assert all(converted["model"][key] is value for key, value in tensors.items())


def test_files_load_as_torch_would_have_loaded_them(tmp_path: Path) -> None:
    base = seeded(6)
    saved = {
        "amp": dict(APEX),
        "model": OrderedDict(
            whole=base,
            part=base[2:4],
            same=base,
            param=torch.nn.Parameter(seeded(2)),
            frozen=torch.nn.Parameter(seeded(2), requires_grad=False),
            grad=torch.ones(2, requires_grad=True),
            transposed=seeded(2, 3).t(),
            half=seeded(3).half(),
            bfloat16=seeded(3).bfloat16(),
            complex=torch.ones(2, dtype=torch.complex64) * 2j,
            flags=torch.tensor([True, False]),
            empty=torch.empty(0, 3),
            scalar=torch.tensor(3),
            sparse=torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.ones(2), (4,)),
        ),
        "size": torch.Size([2, 3]),
        "device": torch.device("cpu"),
        "dtype": torch.float16,
        "rest": (1, {2}, b"x", 1.5, None, "s"),
    }
    for legacy in (False, True):
        path = tmp_path / f"{legacy}.pt"
        torch.save(saved, path, _use_new_zipfile_serialization=not legacy)
        found = load(path)
        assert found["amp"] == NATIVE
        model = found["model"]
        assert model["whole"] is model["same"]
        assert model["part"].data_ptr() == model["whole"].data_ptr() + 8
        for key, value in saved["model"].items():
            one, other = (t.to_dense() if t.is_sparse else t for t in (model[key], value))
            assert type(one) is type(other) and one.dtype == other.dtype, key
            assert one.tolist() == other.tolist(), key  # torch 1.6 can't compare complex numbers
            assert one.requires_grad == value.requires_grad and model[key].layout == value.layout
        assert model["transposed"].stride() == (1, 3)
        assert [found[key] for key in ("size", "device", "dtype", "rest")] == [
            saved[key] for key in ("size", "device", "dtype", "rest")
        ]


@pytest.mark.filterwarnings("ignore")
def test_a_quantized_tensor_loads_from_a_file(tmp_path: Path) -> None:
    value = torch.quantize_per_tensor(seeded(3), 0.1, 0, torch.qint8)
    torch.save({"q": value, "amp": dict(APEX)}, tmp_path / "q.pt")
    assert torch.equal(load(tmp_path / "q.pt")["q"].dequantize(), value.dequantize())


class Strange:
    """A class that no table knows."""


def test_what_would_have_to_be_executed_is_refused_dropped_or_trusted(tmp_path: Path) -> None:
    path, target = tmp_path / "old.pt", tmp_path / "new.pt"
    torch.save({"amp": dict(APEX), "loader": Strange(), "model": weights()}, path)
    with pytest.raises(Unsafe, match="Strange at loader"):
        load(path)
    with pytest.raises(Unsafe, match="Strange"):
        convert_file(path, target)
    assert not target.exists()
    assert list(load(path, drop_unknown=True)) == ["amp", "model"]
    report = Report()
    trusted = load(path, trust=True, report=report)
    assert type(trusted["loader"]) is Strange and trusted["amp"] == NATIVE
    assert any("executed" in note.text for note in report.notes)
    convert_file(path, target, trust=True)
    again = execute(target, Report())
    assert type(again["loader"]) is Strange and again["amp"] == NATIVE
    with pytest.raises(FileExistsError):
        convert_file(path, target, trust=True)


def test_a_known_object_cant_hide_an_unknown_one(tmp_path: Path) -> None:
    masters = list(weights().values())
    path = tmp_path / "old.pt"
    for hidden in ("scaler", "wrapper"):
        state = wrapped(adam_state(masters), [masters])
        if hidden == "scaler":
            state["loss_scaler"].helper = Strange()
        else:
            state["overflow"] = Strange()
        torch.save({"model": halved(weights()), "optimizer": state}, path)
        with pytest.raises(Unsafe, match="Strange at optimizer"):
            load(path)
        assert load(path, drop_unknown=True)["scaler"]["scale"] == 512.0


def test_a_file_converts_into_one_that_needs_no_trust(tmp_path: Path) -> None:
    masters = list(weights().values())
    saved = {"model": halved(weights()), "optimizer": wrapped(adam_state(masters), [masters])}
    torch.save(saved, tmp_path / "old.pt")
    report = convert_file(tmp_path / "old.pt", tmp_path / "new.pt")
    assert report.layouts == ["FP16_Optimizer.state_dict()"]
    found = torch_load(tmp_path / "new.pt")
    assert equal(dict(found["model"]), dict(weights())) and found["scaler"]["scale"] == 512.0


# --- whole objects


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(4, 3)
        self.out = torch.nn.Linear(3, 4, bias=False)
        self.out.weight = self.embed.weight
        self.norm = torch.nn.BatchNorm1d(4)
        self.missing = None
        self.register_parameter("absent", None)
        self.register_buffer("kept", torch.ones(2))
        self.register_buffer("passing", torch.ones(2), persistent=False)
        self.shared = self.norm


def test_a_pickled_model_becomes_what_its_state_dict_was(tmp_path: Path) -> None:
    net = Net()
    torch.save({"model": torch.nn.DataParallel(net), "epoch": 1}, tmp_path / "m.pt")
    report = Report()
    found = load(tmp_path / "m.pt", report=report)["model"]
    expected = net.state_dict(prefix="module.")
    assert equal(dict(found), dict(expected)) and type(found) is OrderedDict
    assert found["module.embed.weight"].data_ptr() == found["module.out.weight"].data_ptr()
    assert any("none is built" in note.text and "Net" in note.text for note in report.notes)
    net.load_state_dict(load(tmp_path / "m.pt", strip_prefix="module.")["model"])


def test_a_pickled_model_that_hides_something_is_refused_by_module_and_name(tmp_path: Path) -> None:
    net = Net()
    net.norm.helper = Strange()
    torch.save(net, tmp_path / "m.pt")
    with pytest.raises(Unsafe, match="module norm .*BatchNorm1d.* holds .*Strange"):
        load(tmp_path / "m.pt")
    report = Report()
    assert "norm.weight" in load(tmp_path / "m.pt", drop_unknown=True, report=report)
    assert any("Strange" in note.text and note.kind.value == "lost" for note in report.notes)


def test_a_pickled_optimizer_is_explained_and_its_state_taken_only_in_trust(tmp_path: Path) -> None:
    p = [torch.nn.Parameter(seeded(2)), torch.nn.Parameter(seeded(3))]
    optimizer = torch.optim.Adam([{"params": p[:1]}, {"params": p[1:], "lr": 0.5}])
    for one in p:
        one.grad = torch.ones_like(one)
    optimizer.step()
    saved = {"model": weights(), "optimizer": optimizer}
    path = tmp_path / "o.pt"
    torch.save(saved, path)
    for attempt in (lambda: load(path), lambda: convert_state(saved)):
        with pytest.raises(CannotConvert, match=r"^optimizer is .*optimizer object \(torch.optim.*Adam\)"):
            attempt()
    assert list(load(path, drop_unknown=True)) == ["model"]
    for state in (load(path, trust=True)["optimizer"], convert_state(saved, trust=True)[0]["optimizer"]):
        assert [group["params"] for group in state["param_groups"]] == [[0], [1]]
        assert torch.equal(state["state"][1]["exp_avg"], optimizer.state[p[1]]["exp_avg"])
        torch.optim.Adam([{"params": p[:1]}, {"params": p[1:]}]).load_state_dict(state)


def test_a_live_model_gets_torchs_layers_and_shares_its_weights() -> None:
    from amp_migrate.apex.normalization import FusedLayerNorm
    from amp_migrate.apex.parallel import SyncBatchNorm

    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Sequential(FusedLayerNorm(3), SyncBatchNorm(3)))
    (found, plain), report = convert_state((net, torch.nn.Linear(2, 2)))
    assert type(found[1][0]) is torch.nn.LayerNorm and type(found[1][1]) is torch.nn.SyncBatchNorm
    assert found[1][0].weight is net[1][0].weight and found[0] is net[0]
    assert type(net[1][0]) is FusedLayerNorm
    assert list(found.state_dict()) == list(net.state_dict())
    unchanged = torch.nn.Linear(2, 2)
    assert convert_state({"m": unchanged})[0]["m"] is unchanged


def test_transformers_arguments_become_a_dict_without_apex(tmp_path: Path) -> None:
    class TrainingArguments:
        pass

    TrainingArguments.__module__, TrainingArguments.__qualname__ = __name__, "TrainingArguments"
    globals()["TrainingArguments"] = TrainingArguments
    arguments = TrainingArguments()
    arguments.__dict__.update(
        fp16=True, fp16_opt_level="O2", half_precision_backend="apex", fp16_backend="auto", lr=0.1
    )
    torch.save(arguments, tmp_path / "training_args.bin")
    report = Report()
    found = load(tmp_path / "training_args.bin", report=report)
    assert found == {
        "fp16": True,
        "fp16_opt_level": "O2",
        "half_precision_backend": "auto",
        "fp16_backend": "auto",
        "lr": 0.1,
    }
    assert any("O2" in note.text for note in report.notes)


# --- master params, prefixes, levels


def bert(names: list[str]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    masters = weights()
    model = OrderedDict((k, v.half().float()) for k, v in masters.items())
    model["norm.weight"] = masters["norm.weight"]
    state = adam_state([masters[name] for name in names])
    (group,) = state["param_groups"]
    state["param_groups"] = [{**group, "params": [0, 1]}, {**group, "params": [2, 3, 4]}]
    return {"model": model, "optimizer": state, "master params": [masters[n] for n in names], "files": [1]}, masters


@pytest.mark.parametrize("names", [["fc.bias", "norm.bias", "out.weight", "norm.weight", "fc.weight"], list(weights())])
def test_master_params_in_group_order_win_by_name(names: list[str]) -> None:
    saved, masters = bert(names)
    converted, _ = convert_state(saved)
    assert equal(dict(converted["model"]), dict(masters))
    assert list(converted) == ["model", "optimizer", "files"] and converted["optimizer"] is saved["optimizer"]


def test_master_params_keep_tied_copies_together() -> None:
    saved, masters = bert(list(weights()))
    saved["model"]["decoder.weight"] = saved["model"]["out.weight"].clone()
    model = convert_state(saved)[0]["model"]
    assert torch.equal(model["decoder.weight"], masters["out.weight"])


def test_half_entries_among_master_params_leave_the_models_weight_as_it_is() -> None:
    saved, masters = bert(list(weights()))
    saved["master params"][1] = masters["fc.bias"].half()
    converted, _ = convert_state(saved)
    assert converted["model"]["fc.bias"] is saved["model"]["fc.bias"]
    assert torch.equal(converted["model"]["fc.weight"], masters["fc.weight"])


def test_master_params_that_dont_fit_are_refused() -> None:
    saved, _ = bert(list(weights()))
    saved["master params"].pop()
    with pytest.raises(CannotConvert, match=r"master params.* has 4 masters, but the optimizer beside it has \[5\]"):
        convert_state(saved)
    saved, _ = bert(list(weights()))
    saved["master params"][3] = torch.ones(9)
    with pytest.raises(CannotConvert, match=r"group 1 has a master of shape \(9,\)"):
        convert_state(saved)


def test_a_prefix_that_only_some_keys_have_stays_and_the_report_says_so() -> None:
    saved = {"model": {"module.a": torch.ones(2), "b": torch.ones(2)}}
    converted, report = convert_state(saved, strip_prefix="module.")
    assert converted is saved
    assert [note.text for note in report.notes] == ["'module.' stays: 1 of 2 keys don't begin with it"]


def test_a_prefix_is_cut_where_every_key_has_it() -> None:
    saved = {"model": weights("module."), "other": weights(), "optimizer": adam_state([])}
    saved["model"]._metadata = OrderedDict({"": {}, "module": {"version": 1}, "module.fc": {"version": 2}})
    converted, _ = convert_state(saved, strip_prefix="module.")
    assert list(converted["model"]) == list(weights())
    assert dict(converted["model"]._metadata) == {"": {"version": 1}, "fc": {"version": 2}}
    assert converted["other"] is saved["other"] and list(saved["model"])[0] == "module.fc.weight"
    assert convert_state(saved)[0] is saved


def test_the_weights_betray_the_opt_level() -> None:
    def level(state: Any) -> str:
        return opt_level([Live().records(state)])

    full = OrderedDict((k, torch.sin(v * 5 + 0.1)) for k, v in weights().items())
    rounded = OrderedDict((k, v.half().float()) for k, v in full.items())
    assert level(full) == "O0 or O1"
    assert level(rounded) == "O2 or O3"
    with_batchnorm = OrderedDict(rounded, **{"norm.weight": full["norm.weight"], "norm.running_mean": full["fc.bias"]})
    assert level(with_batchnorm) == "O2 or O3"
    assert level(halved(full)) == "half"
    assert not looks_rounded(Live().records(OrderedDict(w=torch.ones(3))))


def test_records_convert_as_live_objects_do() -> None:
    saved = {"amp": dict(APEX), "optimizer": fused_state(weights().values())}
    live = Live()
    tree = live.records(saved)
    report = Report()
    assert equal(live.objects(convert_tree(tree, Options(), report)), convert_state(saved)[0])
    assert report.layouts == ["amp.state_dict()", "fused optimizer's state"]


def test_scaler_state_takes_every_layout() -> None:
    assert scaler_state(NATIVE) == NATIVE and scaler_state({}) == {}
    several = convert_state(
        {"loss_scaler0": APEX["loss_scaler0"], "loss_scaler1": {"loss_scale": 2.0, "unskipped": 0}}
    )[0]
    assert scaler_state(several, 1)["scale"] == 2.0
    assert scaler_state(LossScaler(_loss_scale=4.0, _unskipped=1))["_growth_tracker"] == 1
    with pytest.raises(CannotConvert, match="it is a list"):
        scaler_state([1])
