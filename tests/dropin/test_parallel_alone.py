"""DistributedDataParallel in one process with gloo on a CPU.

The checks run in one process of their own (this file is also that program): torch 2.13 sometimes aborts while Python
shuts down after gloo.
"""

from __future__ import annotations

import copy
import gc
import inspect
import json
import os
import pathlib
import pickle
import subprocess
import sys
import traceback
import warnings
import weakref
from typing import Any, Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import amp_migrate.apex.amp as amp
from amp_migrate.apex.parallel import DistributedDataParallel

HAS_HOOKS = hasattr(nn.parallel.DistributedDataParallel, "register_comm_hook")


class Net(nn.Module):
    """``spare`` is used only where the caller says so."""

    def __init__(self, with_spare: bool = True) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        if with_spare:
            self.spare = nn.Linear(2, 2)

    def forward(self, x: Tensor, spare: bool = False) -> Any:
        x = self.b(self.norm(self.a(x)))
        return {"out": self.spare(x) if spare else x, "other": [1, None]}


def x() -> Tensor:
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(0))


def train(model: Any, spare: bool = False) -> None:
    model.zero_grad()
    model(x(), spare)["out"].pow(2).mean().backward()


def raises(kind: type, text: str, call: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=text):
        call()


def it_takes_what_Apex_took_and_names_what_it_ignores() -> None:  # S44
    options: dict[str, Any] = {"message_size": 1, "delay_allreduce": True, "num_allreduce_streams": 1, "prof": True}
    if HAS_HOOKS:
        options["gradient_predivide_factor"] = 2.0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        models = [DistributedDataParallel(Net(), **options) for _ in range(2)]
    said = [str(w.message) for w in caught if "how Apex communicated" in str(w.message)]
    assert len(said) == 1 and "message_size, prof " in said[0], said
    for model in models:
        for spare in (False, True, False):
            train(model, spare)
    model = models[0]
    assert model.find_unused_parameters and not model.broadcast_buffers
    assert (model.message_size, model.world_size) == (1, 1.0)
    assert isinstance(model, nn.parallel.DistributedDataParallel)
    assert all(key.startswith("module.") for key in model.state_dict())


def defaults_say_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = DistributedDataParallel(Net(with_spare=False), 10000000, False, None)
        train(model)
        train(model)
    assert not model.find_unused_parameters


def contradictions_raise_what_Apex_raised() -> None:
    make = DistributedDataParallel
    raises(ValueError, "shared_param is no longer supported", lambda: make(Net(), shared_param=True))
    raises(ValueError, "num_allreduce_streams", lambda: make(Net(), delay_allreduce=True, num_allreduce_streams=2))
    raises(ValueError, "allreduce_trigger_params", lambda: make(Net(), 1, True, allreduce_trigger_params=[]))
    raises(AssertionError, "num_allreduce_streams", lambda: make(Net(), allreduce_communicators=([0], [0, 1])))
    if not HAS_HOOKS:
        raises(RuntimeError, "need torch 1.8", lambda: make(Net(), gradient_average=False))


def a_parameter_that_is_never_used_is_learned_in_the_first_backward() -> None:
    model = DistributedDataParallel(Net())
    seen: list[int] = []
    model.register_forward_hook(lambda *_: seen.append(1))
    for step in range(4):
        train(model)
        assert model.module.spare.weight.grad is None and model.module.a.weight.grad is not None
        assert model.find_unused_parameters is (step > 0)
    assert len(seen) == 4 and model.training
    train(model, spare=True)
    assert model.module.spare.weight.grad is not None


def a_parameter_that_stops_being_used_is_an_error_that_says_what_to_do() -> None:
    model = DistributedDataParallel(Net())
    train(model, spare=True)
    train(model)
    raises(RuntimeError, "delay_allreduce=True", lambda: train(model))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, values: Tensor, spare: bool = False) -> Any:
        reentrant = {"use_reentrant": True} if "use_reentrant" in inspect.signature(checkpoint).parameters else {}
        return {"out": self.last(checkpoint(self.inner, values.requires_grad_(), **reentrant))}


def checkpoints_are_not_taken_for_unused_parameters() -> None:
    model = DistributedDataParallel(Checkpointed())
    for _ in range(3):
        train(model)
    assert not model.find_unused_parameters and model.module.inner.weight.grad is not None


def a_gradient_penalty_is_not_taken_for_a_backward() -> None:
    model = DistributedDataParallel(Net(with_spare=False))
    for _ in range(2):
        model.zero_grad()
        values = x().requires_grad_()
        out = model(values)["out"]
        (slope,) = torch.autograd.grad(out.sum(), values, create_graph=True)
        (out.mean() + slope.pow(2).mean()).backward()
    assert not model.find_unused_parameters


def switching_allreduce_off_works_between_forward_and_backward() -> None:
    model = DistributedDataParallel(Net(with_spare=False))
    assert model._disable_allreduce is False
    for step in range(3):
        out = model(x())["out"]
        if step == 1:
            model.disable_allreduce()
            assert model._disable_allreduce is True
        out.sum().backward()
        model.enable_allreduce()
    with model.no_sync():
        train(model)
    train(model)
    assert model.require_backward_grad_sync


def copies_and_pickles_train() -> None:
    options: dict[str, Any] = {"allreduce_always_fp32": True} if HAS_HOOKS else {}
    frozen = Net(with_spare=False)
    for param in frozen.parameters():
        param.requires_grad_(False)
    for model in (DistributedDataParallel(Net(with_spare=False), **options), DistributedDataParallel(frozen)):
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(twin(x())["out"], model(x())["out"]) or twin.training
            if model.module is not frozen:
                train(twin)
                train(twin)
            assert twin.eval() is twin and not twin.module.norm.training
            assert twin.train() is twin and twin.module.norm.training


def nothing_keeps_a_dropped_model_alive() -> None:
    options: dict[str, Any] = {"gradient_predivide_factor": 2.0} if HAS_HOOKS else {}
    model = DistributedDataParallel(Net(with_spare=False), **options)
    train(model)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


def amp_wants_the_bare_model() -> None:
    model = DistributedDataParallel(Net())
    raises(RuntimeError, "AFTER the model", lambda: amp.initialize(model, opt_level="O1", verbosity=0))


def amp_trains_through_it() -> None:
    for level in ("O1", "O2"):
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net, optimizer = amp.initialize(net, optimizer, opt_level=level, verbosity=0, loss_scale=64.0)
        model = DistributedDataParallel(net, delay_allreduce=True)
        before = net.a.weight.detach().clone()
        for _ in range(3):
            optimizer.zero_grad()
            with amp.scale_loss(model(x())["out"].float().pow(2).mean(), optimizer) as loss:
                loss.backward()
            optimizer.step()
        assert not torch.equal(before, net.a.weight)


CHECKS = [
    it_takes_what_Apex_took_and_names_what_it_ignores,
    defaults_say_nothing,
    contradictions_raise_what_Apex_raised,
    a_parameter_that_is_never_used_is_learned_in_the_first_backward,
    a_parameter_that_stops_being_used_is_an_error_that_says_what_to_do,
    checkpoints_are_not_taken_for_unused_parameters,
    a_gradient_penalty_is_not_taken_for_a_backward,
    switching_allreduce_off_works_between_forward_and_backward,
    copies_and_pickles_train,
    nothing_keeps_a_dropped_model_alive,
    amp_wants_the_bare_model,
    amp_trains_through_it,
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("alone")
    root = pathlib.Path(__file__).resolve().parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, __file__, str(folder)],
        env=environment,
        timeout=120,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout.decode()
    return json.loads((folder / "outcomes.json").read_text())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_in_one_process(outcomes: Any, check: Callable[[], None]) -> None:
    assert outcomes[check.__name__] == "", outcomes[check.__name__]


def test_signature_is_that_of_Apex() -> None:
    parameters = list(inspect.signature(DistributedDataParallel.__init__).parameters.values())[2:]
    assert [(p.name, p.default) for p in parameters] == [
        ("message_size", 10000000),
        ("delay_allreduce", False),
        ("shared_param", None),
        ("allreduce_trigger_params", None),
        ("retain_allreduce_buffers", False),
        ("allreduce_always_fp32", False),
        ("num_allreduce_streams", 1),
        ("allreduce_communicators", None),
        ("gradient_average", True),
        ("gradient_predivide_factor", 1.0),
        ("gradient_average_split_factor", None),
        ("prof", False),
    ]


def main(folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
    results = {}
    for check in CHECKS:
        try:
            check()
            results[check.__name__] = ""
        except BaseException:
            results[check.__name__] = traceback.format_exc()
    (pathlib.Path(folder) / "outcomes.json").write_text(json.dumps(results))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
