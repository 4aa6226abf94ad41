"""FP16_Optimizer in all its layouts: masters find their weights, state its parameters, the scaler its place."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch

from amp_migrate.convert import CannotConvert, comparing, convert_state, optimizer_state, scaler_state

from .trees import (
    DynamicLossScaler,
    LossScaler,
    adam_state,
    equal,
    halved,
    seeded,
    sgd_state,
    snapshot,
    weights,
    wrapped,
)

ORDER = ["norm.bias", "fc.bias", "norm.weight", "out.weight", "fc.weight"]  # the optimizer's, not the model's


def checkpoint(key: str = "fp32_from_fp16", prefix: str = "") -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """A half model, and an optimizer with biases and norms in a first group."""
    masters = weights(prefix)
    names = [prefix + name for name in ORDER]
    parameters = [torch.nn.Parameter(masters[name].clone()) for name in names]
    inner = sgd_state(parameters)
    (group,) = inner["param_groups"]
    inner["param_groups"] = [{**group, "params": [0, 1, 2]}, {**group, "params": [3, 4]}]
    state = wrapped(inner, [parameters[:3], parameters[3:]], key)
    return {"model": halved(masters), "optimizer": state, "epoch": 3}, masters


@pytest.mark.parametrize("key", ["fp32_from_fp16", "fp32_groups", "fp32_from_fp16_params"])
@pytest.mark.parametrize("prefix", ["", "module.", "1.", "network."])
def test_masters_in_the_optimizers_order_find_their_names(key: str, prefix: str) -> None:
    saved, masters = checkpoint(key, prefix)
    converted, _ = convert_state(saved)
    assert equal(dict(converted["model"]), dict(masters))
    assert not any(isinstance(value, torch.nn.Parameter) for value in converted["model"].values())
    assert list(converted) == ["model", "optimizer", "epoch", "scaler"]
    assert converted["scaler"] == {
        "scale": 512.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 1000,
        "_growth_tracker": 5,
    }


def test_the_inner_state_takes_the_place_and_keeps_every_tensor() -> None:
    saved, _ = checkpoint()
    inner = snapshot(saved["optimizer"]["optimizer_state_dict"])
    converted, _ = convert_state(saved)
    assert equal(converted["optimizer"], inner)
    old = saved["optimizer"]["optimizer_state_dict"]["state"][0]["momentum_buffer"]
    assert converted["optimizer"]["state"][0]["momentum_buffer"] is old


def test_nothing_that_was_passed_in_changes() -> None:
    saved, _ = checkpoint()
    before = snapshot({key: value for key, value in saved["optimizer"].items() if key != "loss_scaler"})
    model = snapshot(saved["model"])
    convert_state(saved)
    assert equal({key: value for key, value in saved["optimizer"].items() if key != "loss_scaler"}, before)
    assert equal(saved["model"], model)


def test_converting_twice_is_converting_once() -> None:
    once, _ = convert_state(checkpoint()[0])
    twice, report = convert_state(once)
    assert twice is once
    assert [note.text for note in report.notes] == ["nothing in it that is not native's already: unchanged"]


def flat_checkpoint(names: list[list[str]]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    masters = weights()
    flats = [torch.cat([masters[name].reshape(-1) for name in group]) for group in names]
    groups = [{"lr": 0.1, "momentum": 0.9, "dampening": 0, "nesterov": False, "weight_decay": 0.0} for _ in names]
    inner = {
        "state": {9000 + i: {"momentum_buffer": flat * 2, "step": 4} for i, flat in enumerate(flats)},
        "param_groups": [{**group, "params": [9000 + i]} for i, group in enumerate(groups)],
    }
    state = {
        "dynamic_loss_scale": True,
        "cur_scale": 256.0,
        "cur_iter": 10,
        "last_overflow_iter": 3,
        "scale_factor": 2,
        "scale_window": 1000,
        "optimizer_state_dict": inner,
        "fp32_groups_flat": flats,
    }
    return {"model": halved(masters), "optimizer": state}, masters


@pytest.mark.parametrize(
    "names",
    [
        [["fc.weight", "fc.bias", "norm.weight", "norm.bias", "out.weight"]],
        [["fc.weight", "out.weight"], ["fc.bias", "norm.weight", "norm.bias"]],
        [["out.weight", "norm.bias"], ["fc.bias", "fc.weight", "norm.weight"]],
    ],
)
def test_flat_masters_and_state_are_cut_where_the_weights_end(names: list[list[str]]) -> None:
    saved, masters = flat_checkpoint(names)
    flats = saved["optimizer"]["fp32_groups_flat"]
    converted, _ = convert_state(saved)
    assert equal(dict(converted["model"]), dict(masters))
    assert converted["model"][names[0][0]].data_ptr() == flats[0].data_ptr()  # a view, no copy
    in_order = [name for group in names for name in group]
    for index, name in enumerate(in_order):
        entry = converted["optimizer"]["state"][index]
        assert torch.equal(entry["momentum_buffer"], masters[name] * 2) and entry["step"] == 4
    assert [n for group in converted["optimizer"]["param_groups"] for n in group["params"]] == list(range(5))
    assert converted["scaler"]["_growth_tracker"] == 6


def flat_of(*named: tuple[str, torch.Tensor], model: Any = None) -> dict[str, Any]:
    """A checkpoint with one flat group of masters, which lies inside a larger buffer."""
    buffer = torch.cat([torch.full((5,), 9.0), *(master.reshape(-1) for _, master in named), torch.full((5,), 9.0)])
    flat = buffer[5:-5]
    state, masters = flat_checkpoint([["fc.bias"]])
    state["optimizer"]["fp32_groups_flat"] = [flat]
    state["optimizer"]["optimizer_state_dict"]["state"][9000] = {"step": 4, "momentum_buffer": flat * 2}
    return {**state, "model": model or OrderedDict((name, master.half()) for name, master in named)}


def test_flat_masters_inside_a_larger_buffer_are_cut_at_the_right_elements() -> None:
    named = [("a", seeded(2, 2)), ("b", seeded(3, seed=4))]
    converted, _ = convert_state(flat_of(*named))
    for index, (name, master) in enumerate(named):
        assert torch.equal(converted["model"][name], master)
        assert torch.equal(converted["optimizer"]["state"][index]["momentum_buffer"], master * 2)


def test_a_weight_that_begins_like_another_is_tried_again_later() -> None:
    short, long = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0, 3.0])
    model = OrderedDict([("short", short.half()), ("long", long.half())])
    converted, _ = convert_state(flat_of(("long", long), ("short", short), model=model))
    assert torch.equal(converted["model"]["long"], long) and torch.equal(converted["model"]["short"], short)


ALIKE_IN_FLAT = [("a", torch.full((2,), 1e-9)), ("b", torch.full((3,), 2e-9))]


def test_flat_masters_that_look_alike_follow_the_models_order_where_the_others_do() -> None:
    named = [("first", seeded(4)), *ALIKE_IN_FLAT, ("last", seeded(5))]
    converted, _ = convert_state(flat_of(*named))
    assert all(torch.equal(converted["model"][name], master) for name, master in named)


@pytest.mark.parametrize("others", [[], [("first", seeded(4))]])
def test_flat_masters_that_may_be_cut_in_two_ways_are_refused(others: Any) -> None:
    with pytest.raises(CannotConvert, match=r"a and b are the same numbers in either order.*param_order"):
        convert_state(flat_of(*others, *ALIKE_IN_FLAT))


def test_flat_masters_of_another_size_are_refused_by_group() -> None:
    saved, _ = flat_checkpoint([["fc.weight", "out.weight"], ["fc.bias", "norm.weight", "norm.bias"]])
    saved["optimizer"]["fp32_groups_flat"][1] = torch.ones(10)
    with pytest.raises(CannotConvert, match="optimizer, group 1.* 10 elements"):
        convert_state(saved)


def test_flat_masters_without_a_model_are_refused() -> None:
    saved, _ = flat_checkpoint([["fc.weight"]])
    del saved["model"]
    with pytest.raises(CannotConvert, match="flat masters.*model's state beside"):
        convert_state(saved)


def test_a_shape_that_no_weight_has_is_refused_by_group() -> None:
    saved, _ = checkpoint()
    saved["optimizer"]["fp32_from_fp16"][1][0] = torch.ones(7)
    with pytest.raises(CannotConvert, match=r"optimizer: group 1 has a master of shape \(7,\)"):
        convert_state(saved)


def test_a_master_of_another_step_is_refused() -> None:
    saved, _ = checkpoint()
    saved["optimizer"]["fp32_from_fp16"][0][0].data.add_(1.0)
    with pytest.raises(CannotConvert, match="no weight of the model beside it"):
        convert_state(saved)


def alike(in_one_group: bool, order: list[int]) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Three norms' weights near one, whose masters differ by less than a half shows."""
    masters = [torch.ones(3) + 1e-5 * (i + 1) for i in range(3)]
    first, last = seeded(2, 2), seeded(2, 2, seed=5)
    model = OrderedDict([("a.weight", first.half())])
    model.update((f"n{i}.weight", m.half()) for i, m in enumerate(masters))
    model["z.weight"] = last.half()
    params = [first, *(masters[i] for i in order), last]
    groups = [params] if in_one_group else [params[:2], params[2:]]
    saved = {"model": model, "optimizer": wrapped(sgd_state(params), groups)}
    return saved, masters


def test_masters_that_look_alike_follow_the_models_order_where_the_rest_of_their_group_does() -> None:
    saved, masters = alike(True, [0, 1, 2])
    converted, _ = convert_state(saved)
    assert all(torch.equal(converted["model"][f"n{i}.weight"], master) for i, master in enumerate(masters))


def test_masters_that_look_alike_in_an_unproven_order_are_refused_with_the_option() -> None:
    saved, _ = alike(True, [0, 1, 2])
    saved["optimizer"]["fp32_from_fp16"][0].reverse()
    with pytest.raises(CannotConvert, match="n0.weight, n1.weight, n2.weight.*param_order"):
        convert_state(saved)


def test_masters_that_look_alike_in_several_groups_are_refused_and_names_help() -> None:
    saved, masters = alike(False, [2, 0, 1])
    with pytest.raises(CannotConvert, match="param_order"):
        convert_state(saved)
    names = ["a.weight", "n2.weight", "n0.weight", "n1.weight", "z.weight"]
    converted, _ = convert_state(saved, param_order=names)
    assert all(torch.equal(converted["model"][f"n{i}.weight"], master) for i, master in enumerate(masters))
    converted, _ = convert_state(saved, param_order={"optimizer": names})
    assert torch.equal(converted["model"]["n2.weight"], masters[2])


@pytest.mark.parametrize("names", [["a.weight"], ["z.weight", "n0.weight", "n1.weight", "n2.weight", "a.weight"]])
def test_names_that_contradict_the_masters_are_refused(names: list[str]) -> None:
    saved, _ = alike(False, [0, 1, 2])
    with pytest.raises(CannotConvert, match="param_order"):
        convert_state(saved, param_order=names)


def test_a_frozen_twin_makes_a_bland_master_ambiguous() -> None:
    saved, _ = alike(True, [0, 1, 2])
    del saved["optimizer"]["fp32_from_fp16"][0][2:4]
    with pytest.raises(CannotConvert, match="param_order"):
        convert_state(saved)


def test_tied_weights_get_the_master_under_both_names_and_stay_tied() -> None:
    master = seeded(3, 2)
    half = master.half()
    saved = {
        "model": OrderedDict([("embed.weight", half), ("decoder.weight", half), ("copy.weight", half.clone())]),
        "optimizer": wrapped(sgd_state([master]), [[master]]),
    }
    model = convert_state(saved)[0]["model"]
    assert all(torch.equal(value, master) and value.dtype == torch.float32 for value in model.values())
    assert model["embed.weight"].data_ptr() == model["decoder.weight"].data_ptr()


def test_float32_parameters_stay_as_the_model_has_them() -> None:
    saved, masters = checkpoint()
    for name in ("norm.weight", "norm.bias"):
        saved["model"][name] = masters[name]
    saved["model"]["norm.running_mean"] = torch.zeros(3)
    saved["model"]["norm.num_batches_tracked"] = torch.tensor(4)
    saved["optimizer"]["fp32_from_fp16"][0][:] = [saved["optimizer"]["fp32_from_fp16"][0][1]]
    model = convert_state(saved)[0]["model"]
    assert equal({name: model[name] for name in masters}, dict(masters))
    assert model["norm.weight"] is masters["norm.weight"] and model["norm.num_batches_tracked"].dtype == torch.int64


@pytest.mark.parametrize("names", [("A", "B"), ("ema", "model")])
def test_several_models_and_optimizers_are_told_apart_by_values(names: tuple[str, str]) -> None:
    first, second = weights(seed=10), weights(seed=50)
    saved = {
        "models": [halved(first), halved(second)],
        "optimizers": [
            wrapped(sgd_state(second.values()), [list(second.values())]),
            wrapped(sgd_state(first.values()), [list(first.values())]),
        ],
        names[0]: 1,
    }
    converted, _ = convert_state(saved)
    assert equal([dict(one) for one in converted["models"]], [dict(first), dict(second)])
    assert [state["scale"] for state in converted["scalers"]] == [512.0, 512.0]
    by_key = {"G": halved(first), "D": halved(second), "optG": saved["optimizers"][1], "optD": saved["optimizers"][0]}
    converted, _ = convert_state(by_key)
    assert equal(dict(converted["G"]), dict(first)) and equal(dict(converted["D"]), dict(second))
    assert list(converted) == ["G", "D", "optG", "optD", "optG_scaler", "optD_scaler"]


def test_one_optimizer_may_train_two_models() -> None:
    first, second = weights(seed=10), weights(seed=50)
    masters = [*second.values(), *first.values()]
    saved = {"enc": halved(first), "dec": halved(second), "opt": wrapped(sgd_state(masters), [masters])}
    converted, _ = convert_state(saved)
    assert equal(dict(converted["enc"]), dict(first)) and equal(dict(converted["dec"]), dict(second))


def test_an_ema_copy_isnt_touched() -> None:
    masters = weights()
    for ema in (halved(masters), halved(weights(seed=9))):
        saved = {"ema_model": ema, "model": halved(masters)}
        saved["optimizer"] = wrapped(sgd_state(masters.values()), [list(masters.values())])
        converted, _ = convert_state(saved)
        assert converted["ema_model"] is ema
        assert equal(dict(converted["model"]), dict(masters))


def test_equal_models_belong_to_the_optimizer_beside_them() -> None:
    masters = weights()

    def run() -> dict[str, Any]:
        return {"model": halved(masters), "optimizer": wrapped(sgd_state(masters.values()), [list(masters.values())])}

    converted, _ = convert_state({"best": {"model": halved(masters)}, "last": run()})
    assert converted["best"]["model"]["fc.weight"].dtype == torch.half
    assert equal(dict(converted["last"]["model"]), dict(masters))
    converted, _ = convert_state({"best": run(), "last": run()})
    assert all(equal(dict(converted[key]["model"]), dict(masters)) for key in converted)


def test_two_masters_of_one_weight_are_refused() -> None:
    same = seeded(2, 2).half()
    first, second = same.float(), same.float() * (1 + 1e-5)
    ones = [seeded(3, seed=7), seeded(3, seed=8)]
    saved = {
        "x": OrderedDict(u=same, a=ones[0].half()),
        "y": OrderedDict(u=same.clone(), b=ones[1].half()),
        "both": wrapped(sgd_state([*ones, first]), [[*ones, first]]),
        "one": wrapped(sgd_state([second]), [[second]]),
    }
    with pytest.raises(CannotConvert, match="two masters of both, one belong to u.*param_order"):
        convert_state(saved)


def test_tied_weights_without_a_pattern_are_one_weight() -> None:
    half, master = torch.ones(4).half(), torch.ones(4) + 1e-5
    tied = OrderedDict([("a", half.detach()), ("b", half.detach())])  # as state_dict() gives them
    saved = {"model": tied, "optimizer": wrapped(sgd_state([master]), [[master]])}
    model = convert_state(saved)[0]["model"]
    assert torch.equal(model["a"], master) and torch.equal(model["b"], master)


def test_a_model_elsewhere_in_the_file_is_found() -> None:
    masters = weights()
    saved = {
        "trainer": {"state": {"optim": wrapped(sgd_state(masters.values()), [list(masters.values())])}},
        "weights": {"language_model": {"encoder": halved(masters)}},
    }
    converted, _ = convert_state(saved)
    assert equal(dict(converted["weights"]["language_model"]["encoder"]), dict(masters))
    assert "scaler" in converted["trainer"]["state"]


def test_masters_without_a_model_are_kept_beside_the_state() -> None:
    masters = list(weights().values())
    state = wrapped(adam_state(masters), [masters])
    converted, report = convert_state(state)
    assert sorted(converted) == ["master params", "param_groups", "scaler", "state"]
    assert equal(converted["master params"], masters)
    assert any("master params" in note.text for note in report.notes)
    assert (
        optimizer_state(state, torch.optim.Adam)["state"][0]["exp_avg"]
        is state["optimizer_state_dict"]["state"][0]["exp_avg"]
    )
    assert scaler_state(state)["scale"] == 512.0


OLD = {"cur_scale": 512.0, "cur_iter": 2005, "last_overflow_iter": 3, "scale_factor": 4.0, "scale_window": 1000}


@pytest.mark.parametrize("scaler", [DynamicLossScaler(**OLD), OLD], ids=["object", "dict"])
def test_the_counting_scaler_of_2018_counts_on(scaler: Any) -> None:
    masters = list(weights().values())
    saved = {"model": halved(weights()), "optimizer": wrapped(sgd_state(masters), [masters], scaler=scaler)}
    assert (
        convert_state(saved)[0]["scaler"]
        == scaler_state(scaler)
        == {
            "scale": 512.0,
            "growth_factor": 4.0,
            "backoff_factor": 0.25,
            "growth_interval": 1000,
            "_growth_tracker": 1,
        }
    )


def test_a_static_scale_is_said_and_can_be_kept_from_growing() -> None:
    masters = list(weights().values())
    saved = {"model": halved(weights())}
    saved["optimizer"] = wrapped(sgd_state(masters), [masters], scaler=LossScaler(cur_scale=128.0))
    converted, report = convert_state(saved)
    assert converted["scaler"]["scale"] == 128.0 and any("static" in note.text for note in report.notes)
    assert convert_state(saved, static_scale=True)[0]["scaler"]["growth_interval"] == 2**31 - 1


def test_deepspeeds_own_entries_are_carried() -> None:
    saved, masters = flat_checkpoint([["fc.weight", "fc.bias", "norm.weight", "norm.bias", "out.weight"]])
    saved["module"] = saved.pop("model")
    saved["optimizer"]["clip_grad"] = 1.0
    converted, _ = convert_state(saved)
    assert converted["optimizer"]["clip_grad"] == 1.0
    assert equal(dict(converted["module"]), dict(masters))


def test_megatrons_hysteresis_is_said_to_be_lost() -> None:
    masters = list(weights().values())
    old = DynamicLossScaler(**OLD, min_scale=1, delayed_shift=2, cur_hysteresis=2, consecutive_hysteresis=False)
    saved = {"model": {"language_model": halved(weights())}, "iteration": 5}
    saved["optimizer"] = wrapped(adam_state(masters), [masters], scaler=old)
    converted, report = convert_state(saved)
    assert any("hysteresis" in note.text for note in report.notes)
    assert converted["scaler"]["scale"] == 512.0
    newer = {
        "optimizer": adam_state(masters),
        "grad_scaler": {"scale": torch.tensor([64.0]), "growth_tracker": 9, "hysteresis_tracker": 2},
        "fp32_from_fp16_params": [masters],
    }
    converted, report = convert_state({"model": halved(weights()), "optimizer": newer})
    assert converted["scaler"]["scale"] == 64.0 and converted["scaler"]["_growth_tracker"] == 9
    assert equal(dict(converted["model"]), dict(weights()))


def test_bfloat16_weights_find_their_masters_too() -> None:
    masters = weights()
    saved = {"model": OrderedDict((k, v.bfloat16()) for k, v in masters.items())}
    saved["optimizer"] = wrapped(sgd_state(masters.values()), [list(masters.values())])
    assert equal(dict(convert_state(saved)[0]["model"]), dict(masters))


def _two_norms(order: list[str], certain: list[str]) -> dict[str, Any]:
    """Two norms' weights, equal as halves, in a group of their own; the others in a first group."""
    masters = weights()
    masters["norm.weight"] = torch.ones(3) + 1e-5
    masters["norm.bias"] = torch.ones(3) + 2e-5
    groups = [[masters[name] for name in certain], [masters[name] for name in order]]
    rest = {name: masters[name] for name in (*certain, *order)}
    return {"model": halved(rest), "optimizer": wrapped(sgd_state(rest.values()), groups), "masters": masters}


def test_masters_that_look_alike_are_refused_where_nothing_shows_an_order() -> None:
    saved = _two_norms(["norm.bias", "norm.weight"], ["fc.weight"])
    saved["model"] = OrderedDict((name, saved["model"][name]) for name in ("fc.weight", "norm.weight", "norm.bias"))
    del saved["masters"]
    with pytest.raises(CannotConvert, match="param_order"):
        convert_state(saved)


def test_masters_that_look_alike_follow_the_order_of_the_other_groups_and_the_report_says_so() -> None:
    saved = _two_norms(["norm.weight", "norm.bias"], ["fc.weight", "fc.bias"])
    masters = saved.pop("masters")
    converted, report = convert_state(saved)
    assert all(torch.equal(value, masters[name]) for name, value in converted["model"].items())
    assert any(note.kind.value == "assumed" and "norm.weight, norm.bias" in note.text for note in report.notes)


def test_a_master_that_is_no_number_finds_its_weight() -> None:
    masters = weights()
    masters["fc.bias"][1] = float("nan")
    saved = {"model": halved(masters), "optimizer": wrapped(sgd_state(masters.values()), [list(masters.values())])}
    model = convert_state(saved)[0]["model"]
    assert torch.isnan(model["fc.bias"]).tolist() == [False, True, False]
    assert torch.equal(model["fc.bias"][::2], masters["fc.bias"][::2])


def test_a_parameter_without_elements_needs_no_weight() -> None:
    masters = {**weights(), "none": torch.zeros(0)}
    saved = {"model": halved(masters), "optimizer": wrapped(sgd_state(masters.values()), [list(masters.values())])}
    model = convert_state(saved)[0]["model"]
    assert torch.equal(model["fc.bias"], masters["fc.bias"])


def test_hundreds_of_weights_that_look_alike_are_compared_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    real = comparing.rounds_to
    monkeypatch.setattr(comparing, "rounds_to", lambda *pair: compared.append(pair) or real(*pair))
    masters = {f"norm{i}": torch.ones(4) + (i + 1) * 1e-6 for i in range(100)}
    masters = {"first": seeded(5), **masters, "last": seeded(6)}
    saved = {"model": halved(masters), "optimizer": wrapped(sgd_state(masters.values()), [list(masters.values())])}
    assert equal(dict(convert_state(saved)[0]["model"]), masters)
    assert len(compared) < 300
