"""amp.state_dict() and its relatives, under any key and at any depth, as each framework keeps them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch

from amp_migrate.convert import CannotConvert, convert_state

from .trees import APEX, NATIVE, SEVERAL, LossScaler, adam_state, equal, sgd_state, snapshot, weights


def notes(report: Any) -> str:
    return "\n".join(f"{note.kind.value} {note.place}: {note.text}" for note in report.notes)


@pytest.mark.parametrize("key", ["amp", "amp_state", "amp_state_dict", "scaler", "apex", "amp scaler", 7])
def test_an_amp_state_is_told_by_its_values_under_any_key(key: Any) -> None:
    saved = {"model": weights(), key: OrderedDict(APEX), "epoch": 3}
    converted, _ = convert_state(saved)
    assert converted[key] == NATIVE
    assert list(converted) == list(saved) and converted["model"] is saved["model"]


@pytest.mark.parametrize("where", [lambda s: s, lambda s: {"a": [{"b": (1, s)}]}, lambda s: [s], lambda s: (0, s)])
def test_an_amp_state_is_found_at_any_depth(where: Any) -> None:
    assert convert_state(where(dict(APEX)))[0] == where(NATIVE)


def test_numbers_may_be_tensors() -> None:
    state = {"loss_scaler0": {"loss_scale": torch.tensor(1024.0), "unskipped": torch.tensor([7])}}
    converted = convert_state({"amp": state})[0]["amp"]
    assert converted == NATIVE
    assert type(converted["scale"]) is float and type(converted["_growth_tracker"]) is int


@pytest.mark.parametrize(
    "value",
    [
        {"loss_scaler0": 3},
        {"loss_scaler0": {"scale": 2.0}},
        {**APEX, "loss": 1},
        {"loss_scalerX": APEX["loss_scaler0"]},
        {},
    ],
)
def test_what_only_looks_like_an_amp_state_stays(value: Any) -> None:
    saved = {"amp": value}
    assert convert_state(saved)[0] is saved


def test_a_state_at_two_places_stays_one_object() -> None:
    state = dict(APEX)
    converted, _ = convert_state({"amp": state, "again": [state]})
    assert converted["amp"] is converted["again"][0]


def test_a_container_that_holds_itself_is_walked() -> None:
    saved: dict[str, Any] = {"amp": dict(APEX)}
    saved["self"] = [saved]
    converted, _ = convert_state(saved)
    assert converted["amp"] == NATIVE and converted["self"][0] is converted


def test_several_scalers_keep_their_names() -> None:
    converted, report = convert_state({"amp": SEVERAL})
    assert converted["amp"] == {"loss_scaler0": NATIVE, "loss_scaler1": {**NATIVE, "scale": 2.0, "_growth_tracker": 0}}
    assert "2 scalers" in notes(report)
    assert convert_state(converted)[0] is converted


@pytest.mark.parametrize("how", [{"scaler": 1}, {"key": "loss_scaler1"}, {"scaler": 1, "key": "amp"}])
def test_one_of_several_can_be_taken_also_later(how: Any) -> None:
    converted, report = convert_state({"amp": SEVERAL}, **how)
    assert converted["amp"]["scale"] == 2.0
    assert "lost amp: loss_scaler0" in notes(report)
    assert convert_state(convert_state({"amp": SEVERAL})[0], **how)[0] == converted


def test_an_index_speaks_of_the_state_at_the_place_that_key_names() -> None:
    converted, _ = convert_state({"amp_G": SEVERAL, "amp_D": dict(APEX)}, scaler=1, key="amp_G")
    assert converted["amp_G"]["scale"] == 2.0 and converted["amp_D"] == NATIVE


def test_a_scaler_that_isnt_there_is_refused() -> None:
    with pytest.raises(CannotConvert, match="amp has no loss_scaler2.*loss_scaler0"):
        convert_state({"amp": SEVERAL}, scaler=2)


def test_what_the_file_doesnt_say_is_said() -> None:
    _, report = convert_state({"amp": dict(APEX)})
    assert "assumed amp: the loss scale was dynamic" in notes(report)
    assert "max_loss_scale" in notes(report)


def test_options_for_what_the_file_doesnt_say() -> None:
    saved = {"amp": {"loss_scaler0": {"loss_scale": 8.0, "unskipped": 1999}}}
    assert convert_state(saved, static_scale=True)[0]["amp"]["growth_interval"] == 2**31 - 1
    accumulated = convert_state(saved, accumulation_steps=4)[0]["amp"]
    assert (accumulated["growth_interval"], accumulated["_growth_tracker"]) == (500, 499)


def test_without_amp_state_nothing_is_invented() -> None:
    saved = {"model": weights(), "optimizer": sgd_state(weights().values()), "epoch": 1}
    converted, report = convert_state(saved)
    assert converted is saved and "unchanged" in notes(report)


def test_half_weights_saved_on_purpose_stay_half() -> None:
    saved = {"model": OrderedDict((k, v.half()) for k, v in weights().items())}
    assert convert_state(saved)[0] is saved


def test_a_native_state_isnt_touched() -> None:
    saved = {"scaler": dict(NATIVE), "amp": {}, "optimizer": adam_state(weights().values())}
    assert convert_state(saved)[0] is saved


def test_weights_that_are_all_halves_are_said_to_come_from_O2() -> None:
    rounded = OrderedDict((k, torch.sin(v * 3).half().float()) for k, v in weights().items())
    _, report = convert_state({"model": rounded, "amp": dict(APEX)})
    assert "lost model: the weights are rounded to half" in notes(report)
    _, report = convert_state({"model": weights(), "amp": dict(APEX)})
    assert "rounded" not in notes(report)


# --- Lightning


LIGHTNING = [
    ("0.9.0", "amp_scaling_state", dict(APEX), "MixedPrecision"),
    ("1.5.10", "amp_scaling_state", dict(APEX), "MixedPrecision"),
    ("1.5.10", "native_amp_scaling_state", dict(NATIVE), "MixedPrecision"),
    ("0.7.6", "native_amp_scaling_state", dict(NATIVE), "MixedPrecision"),
    ("1.6.5", "ApexMixedPrecisionPlugin", dict(APEX), "MixedPrecision"),
    ("1.9.5", "ApexMixedPrecisionPlugin", dict(APEX), "MixedPrecision"),
    ("1.8.6", "NativeMixedPrecisionPlugin", dict(NATIVE), "MixedPrecision"),
    ("1.9.5", "MixedPrecisionPlugin", dict(NATIVE), "MixedPrecision"),
    ("1.7.7", "ShardedNativeMixedPrecisionPlugin", dict(NATIVE), "MixedPrecision"),
    ("1.7.7", "FullyShardedNativeNativeMixedPrecisionPlugin", dict(NATIVE), "FSDPPrecision"),
    ("2.1.0", "FSDPMixedPrecisionPlugin", dict(NATIVE), "FSDPPrecision"),
    ("2.1.0", "MixedPrecisionPlugin", {}, "MixedPrecision"),
]


def lightning(version: str, **entries: Any) -> dict[str, Any]:
    return {
        "epoch": 3,
        "global_step": 30,
        "pytorch-lightning_version": version,
        "state_dict": weights("model."),
        "callbacks": {"ModelCheckpoint": {"best": torch.tensor(0.5)}},
        "optimizer_states": [adam_state(weights().values())],
        "lr_schedulers": [],
        **entries,
    }


@pytest.mark.parametrize(("version", "key", "state", "today"), LIGHTNING)
def test_lightnings_scaler_lands_where_todays_lightning_reads_it(
    version: str, key: str, state: Any, today: str
) -> None:
    saved = lightning(version, **{key: state})
    converted, _ = convert_state(saved)
    assert list(converted) == [today if name == key else name for name in saved]
    assert converted[today] == (NATIVE if state else {})
    rest = [name for name in saved if name != key]
    assert all(converted[name] is saved[name] for name in rest)
    assert convert_state(converted)[0] is converted


@pytest.mark.parametrize("version", ["0.8.5", "1.5.0", "2.4.0"])
def test_a_lightning_checkpoint_without_a_scaler_is_normal(version: str) -> None:
    saved = lightning(version)
    assert convert_state(saved)[0] is saved


def test_todays_lightning_checkpoint_stays() -> None:
    saved = lightning("2.4.0", MixedPrecision=dict(NATIVE))
    assert convert_state(saved)[0] is saved
    both = lightning("2.4.0", MixedPrecision={**NATIVE, "scale": 4.0}, MixedPrecisionPlugin=dict(NATIVE))
    converted, _ = convert_state(both)
    assert converted["MixedPrecision"]["scale"] == 4.0


def test_lightning_takes_one_scaler_and_the_others_are_kept() -> None:
    converted, report = convert_state(lightning("1.5.10", amp_scaling_state=dict(SEVERAL)))
    assert converted["MixedPrecision"] == NATIVE
    assert converted["MixedPrecision_others"]["loss_scaler1"]["scale"] == 2.0
    assert "one is loaded" in notes(report)
    chosen, _ = convert_state(lightning("1.5.10", amp_scaling_state=dict(SEVERAL)), scaler=1)
    assert chosen["MixedPrecision"]["scale"] == 2.0 and "MixedPrecision_others" not in chosen


# --- others that moved


def timm(**entries: Any) -> dict[str, Any]:
    state = sgd_state(weights().values())
    return {
        "epoch": 4,
        "arch": "resnet50",
        "state_dict": weights(),
        "optimizer": state,
        "version": 2,
        "args": {"amp": True},
        **entries,
        "state_dict_ema": weights(seed=3),
    }


def test_timms_scaler_moves_to_amp_scaler() -> None:
    saved = timm(amp=dict(APEX))
    converted, _ = convert_state(saved)
    assert list(converted) == [name.replace("amp", "amp_scaler") for name in saved]
    assert converted["amp_scaler"] == NATIVE and convert_state(converted)[0] is converted


def test_who_has_arch_and_amp_but_isnt_timm_keeps_the_key() -> None:
    saved = {"epoch": 1, "arch": "resnet50", "state_dict": weights(), "optimizer": sgd_state([]), "amp": dict(APEX)}
    assert convert_state(saved)[0]["amp"] == NATIVE


def test_mmengines_scaler_moves_inside_the_optimizers_state() -> None:
    state = {**sgd_state(weights().values()), "base_param_settings": {"lr": 0.1}, "apex_amp": dict(APEX)}
    saved = {"meta": {"epoch": 1}, "state_dict": weights(), "optimizer": state, "message_hub": {}}
    optimizer = convert_state(saved)[0]["optimizer"]
    assert list(optimizer) == ["state", "param_groups", "base_param_settings", "loss_scaler"]
    assert optimizer["loss_scaler"] == NATIVE


@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_mmcvs_own_scaler_in_meta_counts_on(mode: str) -> None:
    own = {
        "cur_scale": 1024.0,
        "cur_iter": 508,
        "mode": mode,
        "last_overflow_iter": 0 if mode == "dynamic" else -1,
        "scale_factor": 2.0,
        "scale_window": 500,
    }
    saved = {"meta": {"epoch": 1, "fp16": {"loss_scaler": own}}, "state_dict": weights(), "optimizer": sgd_state([])}
    converted, report = convert_state(saved)
    expected = {**NATIVE, "growth_interval": 500} if mode == "dynamic" else {**NATIVE, "_growth_tracker": 0}
    assert converted["meta"]["fp16"]["loss_scaler"] == expected
    assert ("static" in notes(report)) == (mode == "static")


def test_mmcvs_native_scaler_and_swins_top_level_amp() -> None:
    meta = {"epoch": 1, "fp16": {"loss_scaler": dict(NATIVE)}}
    converted, _ = convert_state({"meta": meta, "state_dict": weights(), "amp": dict(APEX)})
    assert converted["meta"] is meta and converted["amp"] == NATIVE


def test_a_scaler_object_by_itself_becomes_a_state() -> None:
    scaler = LossScaler(_loss_scale=64.0, _unskipped=3, dynamic=True, _min_loss_scale=2.0, _max_loss_scale=2.0**20)
    converted, report = convert_state({"scaler": scaler})
    assert converted["scaler"] == {**NATIVE, "scale": 64.0, "_growth_tracker": 3}
    assert "min_loss_scale=2.0" in notes(report) and "max_loss_scale=1048576.0" in notes(report)


@pytest.mark.parametrize("state", [dict(APEX), dict(NATIVE)])
def test_vissls_amp_is_told_by_its_content(state: Any) -> None:
    saved = {
        "phase_idx": 3,
        "classy_state_dict": {"base_model": {"model": {"trunk": weights(), "heads": weights(seed=2)}}, "amp": state},
    }
    assert convert_state(saved)[0]["classy_state_dict"]["amp"] == NATIVE


def test_transformer_xls_amp_state() -> None:
    saved = {
        "args": {},
        "model_config": {},
        "model_state": weights(),
        "optimizer_state": sgd_state([]),
        "amp_state": APEX,
    }
    assert convert_state(saved)[0]["amp_state"] == NATIVE


# --- trainers


@pytest.mark.parametrize(("old", "new"), [("O0", False), ("O1", True), ("O2", True), (True, True), (None, None)])
def test_haystacks_opt_level_becomes_a_bool(old: Any, new: Any) -> None:
    saved = {
        "trainer_state": {"epochs": 2, "use_amp": old, "global_step": 10},
        "model_state": weights(),
        "optimizer_state": adam_state(weights().values()),
        "scheduler_state": {},
        "rng_state": torch.zeros(4, dtype=torch.uint8),
    }
    before = snapshot(saved)
    converted, _ = convert_state(saved)
    assert converted["trainer_state"]["use_amp"] is new
    assert equal(saved, before) and (converted is saved) == (old is new)


def fairseq(**model: Any) -> dict[str, Any]:
    parameters = list(weights().values())
    flat = torch.cat([p.reshape(-1) for p in parameters])
    return {
        "args": None,
        "model": {**{k: v.half() for k, v in weights().items()}, **model},
        "optimizer_history": [{"criterion_name": "CE", "optimizer_name": "FP16Optimizer", "num_updates": 9}],
        "extra_state": {"epoch": 2},
        "last_optimizer_state": {
            "state": {0: {"step": 9, "exp_avg": flat, "exp_avg_sq": flat * 2}},
            "param_groups": [
                {"lr": 1e-3, "betas": (0.9, 0.98), "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False, "params": [0]}
            ],
            "loss_scale": 128.0,
        },
    }


@pytest.mark.parametrize(
    "buffers", [{}, {"decoder.version": torch.tensor([3.0]), "embed_positions._float_tensor": torch.zeros(1)}]
)
def test_fairseqs_flat_state_is_cut_and_its_scale_kept(buffers: Any) -> None:
    saved = fairseq(**buffers)
    converted, report = convert_state(saved)
    state = converted["last_optimizer_state"]
    assert [tuple(entry["exp_avg"].shape) for entry in state["state"].values()] == [
        tuple(value.shape) for value in weights().values()
    ]
    assert all(torch.equal(state["state"][i]["exp_avg"], value) for i, value in enumerate(weights().values()))
    assert state["state"][4]["step"] == 9 and state["param_groups"][0]["params"] == [0, 1, 2, 3, 4]
    assert converted["scaler"]["scale"] == state["loss_scale"] == 128.0
    assert "FP16Optimizer hides which optimizer" in notes(report) and "growth_interval" in notes(report)
    assert converted["extra_state"] is saved["extra_state"]
    assert convert_state(converted)[0] is converted


def test_fairseqs_flat_state_that_doesnt_fit_stays_and_is_said() -> None:
    converted, report = convert_state(fairseq(more=torch.zeros(7).half()))
    assert converted["last_optimizer_state"]["state"][0]["exp_avg"].shape == (21,)
    assert converted["scaler"]["scale"] == 128.0 and "stays flat" in notes(report)
    names = list(weights())
    assert (
        len(convert_state(fairseq(more=torch.zeros(7).half()), param_order=names)[0]["last_optimizer_state"]["state"])
        == 5
    )


# --- sharded


SHARDED = [
    {"param_groups": [{"params": [0]}], "state": {}},
    {
        "state": {"step": 3, "buckets": [{"exp_avg_shard": torch.zeros(4)}]},
        "param_groups": [{"lr": 0.1, "params": [0]}],
    },
    {"loss_scaler": None, "zero_stage": 1, "partition_count": 4, "single_partition_of_fp32_groups": [torch.zeros(3)]},
]


@pytest.mark.parametrize("state", SHARDED)
def test_one_processs_part_of_a_sharded_state_is_refused(state: Any) -> None:
    with pytest.raises(CannotConvert, match="^optimizer .*(sharded|buckets|ZeRO).*Gather it"):
        convert_state({"model": weights(), "optimizer": state})


def test_a_tracker_stays_below_an_interval_that_accumulation_rounds_down() -> None:
    state = {"loss_scaler0": {"loss_scale": 8.0, "unskipped": 1999}}
    converted = convert_state({"amp": state}, accumulation_steps=3)[0]["amp"]
    assert (converted["growth_interval"], converted["_growth_tracker"]) == (666, 665)


@pytest.mark.parametrize("state", [SEVERAL, APEX])
def test_a_key_that_no_scaler_has_is_refused_with_those_there_are(state: Any) -> None:
    with pytest.raises(CannotConvert, match=r"called 'amp_X'; there are \['amp_G', 'loss_scaler0'"):
        convert_state({"amp_G": dict(state)}, key="amp_X")


def test_a_key_means_nothing_where_no_scaler_is() -> None:
    saved = {"model": weights()}
    assert convert_state(saved, key="amp_X")[0] is saved


def test_the_report_of_a_chosen_scaler_doesnt_claim_the_others() -> None:
    _, report = convert_state({"amp": SEVERAL}, scaler=1)
    said = notes(report)
    assert "lost amp: loss_scaler0: another scaler was asked for" in said
    assert "changed amp: loss_scaler1 is" in said
    assert "loss_scaler0 is" not in said and "each under its key" not in said
