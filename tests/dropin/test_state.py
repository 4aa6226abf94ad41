"""State dicts of amp, of models and of optimizers."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from . import needs_float16
from .scenarios import adam, fill, mlp, scales, sgd, tensors, train


@pytest.mark.parametrize("disabled", [False, True])
def test_without_scalers_the_state_functions_say_what_to_do(amp, disabled) -> None:
    if disabled:
        model = mlp()
        amp.initialize(model, sgd(model), enabled=False)
    for call in (amp.state_dict, lambda: amp.load_state_dict({})):
        with pytest.raises(AttributeError, match=r"amp\.initialize.*enabled=False"):
            call()


def test_the_state_dict_has_apex_layout(amp) -> None:
    model = mlp()
    amp.initialize(model, sgd(model), opt_level="O1", num_losses=2, verbosity=0)
    entry = {"loss_scale": 65536.0, "unskipped": 0}
    assert amp.state_dict() == {"loss_scaler0": entry, "loss_scaler1": entry}
    assert [type(v) for v in amp.state_dict()["loss_scaler0"].values()] == [float, int]
    own: dict = {"mine": 1}
    assert amp.state_dict(own) is own and list(own) == ["mine", "loss_scaler0", "loss_scaler1"]


def test_the_state_round_trips(amp) -> None:
    model = mlp()
    model, optimizer = amp.initialize(model, sgd(model), opt_level="O0", loss_scale="dynamic", verbosity=0)
    train(amp, model, optimizer, 4, bad=(1,))
    saved = copy.deepcopy(amp.state_dict())
    assert saved == {"loss_scaler0": {"loss_scale": 32768.0, "unskipped": 2}}
    train(amp, model, optimizer, 2, bad=(0, 1))
    amp.load_state_dict(saved)
    assert amp.state_dict() == saved
    train(amp, model, optimizer, 1)
    assert scales(amp)["loss_scaler0"] == {"loss_scale": 32768.0, "unskipped": 3}


def test_the_state_of_a_native_scaler_is_taken(amp) -> None:
    model = mlp()
    amp.initialize(model, sgd(model), opt_level="O0", loss_scale="dynamic", verbosity=0)
    native = {
        "scale": 1024.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2000,
        "_growth_tracker": 7,
    }
    amp.load_state_dict(native)
    assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 1024.0, "unskipped": 7}


def test_unknown_keys_are_refused_and_nothing_is_loaded(amp) -> None:
    model = mlp()
    amp.initialize(model, sgd(model), opt_level="O1", verbosity=0)
    before = dict(amp.state_dict())
    bad = {"loss_scaler0": {"loss_scale": 2.0, "unskipped": 1}, "extra": {}}
    with pytest.raises(RuntimeError, match='Unexpected key.*"extra"'):
        amp.load_state_dict(bad)
    assert amp.state_dict() == before


def test_loading_leaves_the_given_dict_alone(amp) -> None:
    model = mlp()
    model, optimizer = amp.initialize(model, sgd(model), opt_level="O0", loss_scale="dynamic", verbosity=0)
    given = {"loss_scaler0": {"loss_scale": 64.0, "unskipped": 3}}
    amp.load_state_dict(given)
    train(amp, model, optimizer, 2)
    assert given == {"loss_scaler0": {"loss_scale": 64.0, "unskipped": 3}}


@needs_float16
def test_O2_saves_float32_and_loads_half(amp) -> None:  # S60
    model = mlp(batchnorm=True)
    model, optimizer = amp.initialize(model, sgd(model), opt_level="O2", verbosity=0)
    state = model.state_dict()
    assert {v.dtype for v in state.values() if v.is_floating_point()} == {torch.float32}
    assert state["1.num_batches_tracked"].dtype == torch.int64
    assert model[0].weight.dtype == torch.float16 and model[1].weight.dtype == torch.float32
    half = {k: v.half() if v.is_floating_point() else v for k, v in fill(mlp(True), 0.25).state_dict().items()}
    model.load_state_dict(half)
    assert model[0].weight.dtype == torch.float16
    assert torch.equal(model[0].weight.float(), half["0.weight"].float())


@needs_float16
def test_O2_saves_float32_from_inner_modules_and_with_prefix(amp) -> None:  # S60
    model = amp.initialize(torch.nn.Sequential(mlp(), torch.nn.Linear(2, 2)), opt_level="O2", verbosity=0)
    assert {v.dtype for v in model[0].state_dict(prefix="x.").values()} == {torch.float32}
    assert list(model[0].state_dict(prefix="x."))[0] == "x.0.weight"


def test_weights_loaded_after_initialize_reach_the_masters(amp) -> None:  # S61
    model = mlp()
    model, optimizer = amp.initialize(model, sgd(model, lr=0.0), opt_level="O2", verbosity=0)
    wanted = fill(mlp(), 0.25).state_dict()
    model.load_state_dict(wanted)
    loaded = tensors(model.parameters())
    train(amp, model, optimizer, 1)
    assert tensors(model.parameters()) == loaded
    assert torch.allclose(model.state_dict()["0.weight"], wanted["0.weight"], atol=1e-3)


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_a_run_resumes_where_it_was_saved(amp, level) -> None:
    model = mlp(batchnorm=True)
    model, optimizer = amp.initialize(model, adam(model), opt_level=level, loss_scale="dynamic", verbosity=0)
    train(amp, model, optimizer, 3, bad=(1,))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), amp.state_dict()))
    expected = train(amp, model, optimizer, 3, first=3)
    model = mlp(batchnorm=True)
    model, optimizer = amp.initialize(model, adam(model), opt_level=level, loss_scale="dynamic", verbosity=0)
    model.load_state_dict(saved[0])
    optimizer.zero_grad()  # O2: makes the masters, so that the optimizer's state is loaded in float32
    optimizer.load_state_dict(saved[1])
    amp.load_state_dict(saved[2])
    found = train(amp, model, optimizer, 3, first=3)
    assert [r["scales"] for r in found] == [r["scales"] for r in expected]
    for one, other in zip(found[-1]["params"], expected[-1]["params"]):
        assert one == pytest.approx(other, abs=1e-6 if level != "O2" else 4e-3)


def test_a_loss_scaler_pickles_with_apex_own_attributes(amp) -> None:
    model = mlp()
    model, optimizer = amp.initialize(model, sgd(model), opt_level="O0", loss_scale="dynamic", verbosity=0)
    train(amp, model, optimizer, 3, bad=(0,))
    scaler = amp._amp_state.loss_scalers[0]
    twin = pickle.loads(pickle.dumps(scaler))
    assert (twin.loss_scale(), twin._unskipped, twin.dynamic) == (32768.0, 2, True)
    assert twin._scale_seq_len == 2000 and twin._max_loss_scale == 2.0**24


def test_initialize_starts_new_scalers(amp) -> None:  # S04
    for _ in range(2):
        model = mlp()
        model, optimizer = amp.initialize(model, sgd(model), opt_level="O0", loss_scale="dynamic", verbosity=0)
        assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 65536.0, "unskipped": 0}
        train(amp, model, optimizer, 3, bad=(0, 1))
