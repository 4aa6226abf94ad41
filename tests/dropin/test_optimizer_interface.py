"""The optimizers as programs use them: constructors, zero_grad, schedulers, closures, old names; what a step costs."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch

from amp_migrate import notices
from amp_migrate.apex import optimizers
from amp_migrate.apex.contrib import optimizers as contrib
from amp_migrate.apex.contrib.optimizers.distributed_fused_adam import DistributedFusedAdam
from amp_migrate.apex.contrib.optimizers.distributed_fused_lamb import DistributedFusedLAMB
from amp_migrate.apex.contrib.optimizers.fused_sgd import FusedSGD as ContribSGD

from .scenarios import wave
from .test_optimizer_formulas import SHAPES, gradient, start, take_steps

try:
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError:
    TorchDispatchMode = None

#: defaults and their order, as in Apex
_ADAM = "params, lr=0.001, bias_correction=True, betas=(0.9, 0.999), eps=1e-08, "
_LAMB = "bias_correction=True, betas=(0.9, 0.999), eps=1e-06, weight_decay=0.01, amsgrad=False, adam_w_mode=True, "
SIGNATURES = {
    optimizers.FusedAdam: _ADAM + "adam_w_mode=True, weight_decay=0.0, amsgrad=False, set_grad_none=True, "
    "capturable=False, master_weights=False",
    optimizers.FusedLAMB: "params, lr=0.001, " + _LAMB + "grad_averaging=True, set_grad_none=True, max_grad_norm=1.0, "
    "use_nvlamb=False",
    optimizers.FusedNovoGrad: _ADAM + "weight_decay=0.0, amsgrad=False, reg_inside_moment=False, "
    "grad_averaging=True, norm_type=2, init_zero=False, set_grad_none=True",
    optimizers.FusedAdagrad: "params, lr=0.01, eps=1e-10, weight_decay=0.0, set_grad_none=True, adagrad_w_mode=False",
    optimizers.FusedMixedPrecisionLamb: "params, lr=0.001, step=0, " + _LAMB + "grad_averaging=True, "
    "max_grad_norm=1.0, use_nvlamb=False, reduced_precision_dtype=None",
    contrib.FusedAdam: _ADAM + "eps_inside_sqrt=False, weight_decay=0.0, max_grad_norm=0.0, amsgrad=False, "
    "use_mt=False, amp_scale_adjustment=1.0",
    contrib.FusedLAMB: "params, lr=0.001, " + _LAMB + "grad_averaging=True, set_grad_none=True, max_grad_norm=1.0",
    contrib.FP16_Optimizer: "init_optimizer, static_loss_scale=1.0, dynamic_loss_scale=False, dynamic_loss_args=None, "
    "verbose=True",
}
SIMPLE = [
    optimizers.FusedAdam,
    optimizers.FusedAdagrad,
    optimizers.FusedLAMB,
    optimizers.FusedNovoGrad,
    optimizers.FusedMixedPrecisionLamb,
    contrib.FusedAdam,
]


@pytest.mark.parametrize("cls", SIGNATURES, ids=lambda c: f"{c.__module__.split('.')[2]}-{c.__name__}")
def test_signatures_are_Apexs(cls) -> None:
    shown = inspect.signature(cls)
    assert ", ".join(str(p.replace(annotation=p.empty)) for p in shown.parameters.values()) == SIGNATURES[cls]


@pytest.mark.parametrize("cls", [optimizers.FusedSGD, ContribSGD])
def test_SGD_refuses_what_Apex_refused(cls) -> None:
    names = ["params", "lr", "momentum", "dampening", "weight_decay", "nesterov", "wd_after_momentum"]
    assert list(inspect.signature(cls).parameters)[:8] == [*names, "materialize_master_grads"]
    for wrong in ({"lr": -1.0}, {"lr": 1.0, "momentum": -1.0}, {"lr": 1.0, "weight_decay": -1.0}):
        with pytest.raises(ValueError, match="Invalid"):
            cls(start(), **wrong)
    for wrong in ({"momentum": 0.0}, {"momentum": 0.9, "dampening": 0.1}):
        with pytest.raises(ValueError, match="Nesterov"):
            cls(start(), lr=1.0, nesterov=True, **wrong)
    with pytest.raises(ValueError, match="lr"):
        cls(start())
    cls([{"params": start(), "lr": 0.1}])


@pytest.mark.parametrize("cls", [c for c in SIMPLE if c is not optimizers.FusedAdagrad])
def test_amsgrad_is_refused(cls) -> None:
    with pytest.raises(RuntimeError, match="AMSGrad"):
        cls(start(), amsgrad=True)


def test_master_weights_want_capturable() -> None:
    with pytest.raises(RuntimeError, match="capturable"):
        optimizers.FusedAdam(start(), master_weights=True)


@pytest.mark.parametrize("old", [{"grads": []}, {"output_params": []}, {"scale": 1.0}, {"grad_norms": []}])
def test_the_step_of_the_old_FusedAdam_is_refused_by_the_new(old) -> None:
    with pytest.raises(RuntimeError, match="FusedAdam has been updated"):
        optimizers.FusedAdam(start()).step(**old)


@pytest.mark.parametrize("new", ["adam_w_mode", "set_grad_none", "capturable", "master_weights"])
def test_the_old_FusedAdam_does_not_know_new_arguments(new) -> None:
    with pytest.raises(TypeError, match=new):
        contrib.FusedAdam(start(), **{new: True})


@pytest.mark.parametrize("dtype, cls", [(torch.float64, c) for c in SIMPLE[:4]] + [(torch.bfloat16, SIMPLE[2])])
def test_dtypes_that_Apex_did_not_take_are_refused(dtype, cls) -> None:
    param = torch.nn.Parameter(torch.ones(2, dtype=dtype))
    optimizer = cls([param])
    param.grad = torch.ones(2, dtype=dtype)
    with pytest.raises(RuntimeError, match="only support"):
        optimizer.step()


@pytest.mark.parametrize("cls", [*SIMPLE, lambda p: optimizers.FusedSGD(p, lr=0.1)])
def test_sparse_gradients_are_refused(cls) -> None:
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = cls(list(embedding.parameters()))
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()


def test_FusedAdam_with_arguments_of_the_old_class_is_the_old_class(monkeypatch, capsys) -> None:
    """pytorch-pretrained-bert and others: ``from apex.optimizers import FP16_Optimizer, FusedAdam``."""
    monkeypatch.setattr(notices, "_already_said", set())
    model = torch.nn.Linear(2, 2)
    with pytest.warns(notices.MigrationNotice, match="contrib"):
        optimizer = optimizers.FusedAdam(model.parameters(), lr=0.1, bias_correction=False, max_grad_norm=1.0)
    assert type(optimizer) is contrib.FusedAdam
    assert optimizers.FP16_Optimizer is contrib.FP16_Optimizer
    wrapped = optimizers.FP16_Optimizer(optimizer, dynamic_loss_scale=True)
    assert "contrib.optimizers" in capsys.readouterr().out
    before = model.weight.detach().clone()
    wrapped.backward(model(torch.ones(1, 2)).sum())
    wrapped.step()
    assert not torch.equal(model.weight, before)


def test_FP16_Optimizer_skips_and_halves_and_says_so(capsys) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = contrib.FP16_Optimizer(contrib.FusedAdam(model.parameters()), dynamic_loss_scale=True)
    before = model.weight.detach().clone()
    optimizer.backward(model(torch.ones(1, 2)).sum() * float("nan"))
    optimizer.step()
    assert torch.equal(model.weight, before) and optimizer.cur_scale == 2.0**15
    assert "Grad overflow on iteration 0\nUsing dynamic loss scale of 65536" in capsys.readouterr().out
    optimizer.zero_grad(set_grads_to_None=False)
    assert model.weight.grad.abs().sum() == 0
    optimizer.param_groups[0]["lr"] = 0.5
    assert optimizer.optimizer.param_groups[0]["lr"] == 0.5 and optimizer.state is optimizer.optimizer.state
    with pytest.raises(SystemError):
        contrib.FP16_Optimizer(contrib.FusedAdam(start()), dynamic_loss_scale=True, dynamic_loss_args={})


def test_FP16_Optimizer_grows_after_a_window_and_stays_above_one() -> None:
    optimizer = contrib.FP16_Optimizer(contrib.FusedAdam(start()), dynamic_loss_scale=True, verbose=False)
    for _ in range(1000):
        optimizer._update_scale(False)
    assert optimizer.cur_scale == 2.0**17  # iterations 0 to 999 after "iteration -1": one doubling at 999
    for _ in range(30):
        optimizer._update_scale(True)
    assert optimizer.cur_scale == 1


def test_contrib_SGD_says_what_it_needs() -> None:
    optimizer = ContribSGD(start(), lr=0.1)
    with pytest.raises(RuntimeError, match="FP16_Optimizer"):
        optimizer.step()
    optimizer._amp_stash = object()
    with pytest.raises(RuntimeError, match="AMP"):
        optimizer.step(grads=[], output_params=[])


@pytest.mark.parametrize("cls", [DistributedFusedAdam, DistributedFusedLAMB])
def test_distributed_optimizers_import_and_say_what_to_use(cls) -> None:
    with pytest.raises(NotImplementedError, match="drop-in"):
        cls(start(), lr=0.1)


@pytest.mark.parametrize("cls", [optimizers.FusedAdam, optimizers.FusedLAMB, optimizers.FusedAdagrad])
def test_zero_grad_follows_set_grad_none(cls) -> None:
    for none in (True, False):
        params = start()
        optimizer = cls(params, set_grad_none=none)
        take_steps(optimizer, params, 1)
        grad = params[0].grad
        optimizer.zero_grad()
        assert (params[0].grad is None) == none
        if not none:
            assert params[0].grad is grad and grad.abs().sum() == 0  # in place: DDP's buckets stay
        optimizer.zero_grad(set_to_none=True)
        assert params[0].grad is None


def test_SGD_zeroes_gradients_by_default() -> None:
    params = start()
    optimizer = optimizers.FusedSGD(params, lr=0.1)
    take_steps(optimizer, params, 1)
    optimizer.zero_grad()
    assert params[0].grad is not None and params[0].grad.abs().sum() == 0


@pytest.mark.parametrize("cls", [*SIMPLE, lambda p, lr: optimizers.FusedSGD(p, lr=lr)])
def test_schedulers_set_the_rate(cls) -> None:
    params = start()
    optimizer = cls(params, lr=0.1)
    assert isinstance(optimizer, torch.optim.Optimizer)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.0 if epoch else 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        take_steps(optimizer, params, 1)
        scheduler.step()
    assert float(optimizer.param_groups[0]["lr"]) == 0.0
    before = [p.detach().clone() for p in params]
    take_steps(optimizer, params, 1)
    assert all(torch.equal(p, q) for p, q in zip(params, before))


@pytest.mark.parametrize("cls", [*SIMPLE, lambda p: optimizers.FusedSGD(p, lr=0.1)])
def test_a_closure_runs_with_gradients_and_its_loss_comes_back(cls) -> None:
    param = torch.nn.Parameter(torch.ones(2))
    optimizer = cls([param])

    def closure():
        loss = (param * param).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    assert not torch.equal(param, torch.ones(2))


@pytest.mark.parametrize("cls", [*SIMPLE, lambda p: optimizers.FusedSGD(p, lr=0.1)])
def test_parameters_without_gradients_and_late_groups_are_fine(cls) -> None:
    params = start()
    optimizer = cls(params[:2])
    optimizer.step()
    take_steps(optimizer, params[:2], 1)
    optimizer.add_param_group({"params": params[2:]})
    take_steps(optimizer, params, 2)
    assert not any(torch.equal(p, q) for p, q in zip(params, start()))


@pytest.mark.skipif(not hasattr(torch.optim.Optimizer, "register_step_post_hook"), reason="torch 2.0")
def test_step_hooks_run() -> None:
    params, ran = start(), []
    optimizer = optimizers.FusedLAMB(params)
    optimizer.register_step_post_hook(lambda *_: ran.append(1))
    take_steps(optimizer, params, 2)
    assert ran == [1, 1]


def many(count):
    return [torch.nn.Parameter(wave(3, 4, phase=i)) for i in range(count)]


def dispatched(make, count):
    """The operations of the third step, by name."""

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(str(function))
            return function(*args, **(kwargs or {}))

    names, params = [], many(count)
    optimizer = make(params)
    for _ in range(3):
        for i, p in enumerate(params):
            p.grad = wave(3, 4, phase=0.3 * i)
        names.clear()
        with Log():
            optimizer.step()
    return names


COST = {
    "adam": lambda p: optimizers.FusedAdam(p),
    "adam_w": lambda p: optimizers.FusedAdam(p, weight_decay=0.1),
    "adam_l2": lambda p: optimizers.FusedAdam(p, weight_decay=0.1, adam_w_mode=False),
    "sgd": lambda p: optimizers.FusedSGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "adagrad": lambda p: optimizers.FusedAdagrad(p, weight_decay=0.1),
    "lamb": lambda p: optimizers.FusedLAMB(p),
    "novograd": lambda p: optimizers.FusedNovoGrad(p, weight_decay=0.1),
    "mixed_lamb": lambda p: optimizers.FusedMixedPrecisionLamb(p),
    "capturable": lambda p: optimizers.FusedAdam(p, capturable=True),
}
FOREACH = {
    "adam": lambda p: torch.optim.AdamW(p, weight_decay=0.0, foreach=True),
    "adam_w": lambda p: torch.optim.AdamW(p, weight_decay=0.1, foreach=True),
    "adam_l2": lambda p: torch.optim.Adam(p, weight_decay=0.1, foreach=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True, foreach=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, weight_decay=0.1, foreach=True),
}
has_dispatch_mode = pytest.mark.skipif(
    TorchDispatchMode is None or not hasattr(torch, "_foreach_lerp_"), reason="counted on torch 2.0 and newer"
)


@has_dispatch_mode
@pytest.mark.parametrize("name", sorted(COST))
def test_a_step_has_as_many_operations_for_forty_tensors_as_for_four(name) -> None:
    few, lot = dispatched(COST[name], 4), dispatched(COST[name], 40)
    assert few == lot
    assert len(lot) <= {"lamb": 40, "mixed_lamb": 60, "capturable": 40}.get(name, 25), lot


@has_dispatch_mode
@pytest.mark.parametrize("name", sorted(FOREACH))
def test_a_step_has_no_more_operations_than_torchs(name) -> None:
    assert len(dispatched(COST[name], 20)) <= len(dispatched(FOREACH[name], 20))


@has_dispatch_mode
@pytest.mark.parametrize("name", sorted(COST))
def test_a_step_reads_nothing_back(name) -> None:
    waits = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal.default", "masked_select")
    assert not [op for op in dispatched(COST[name], 4) if any(wait in op for wait in waits)]


@pytest.mark.parametrize("name", sorted(COST))
def test_without_list_operations_the_result_is_the_same(name, monkeypatch) -> None:
    """torch 1.6 to 1.8 have none."""
    from amp_migrate.apex.optimizers import _tensor_lists

    params, others = start(), start()
    optimizer, other = COST[name](params), COST[name](others)
    take_steps(optimizer, params, 5)
    monkeypatch.setattr(_tensor_lists, "_foreach", lambda name: None)
    take_steps(other, others, 5)
    assert all(torch.allclose(p, q, rtol=0, atol=1e-7) for p, q in zip(params, others))
    assert len(SHAPES) == len(params) and gradient(0, 1).shape == SHAPES[0]
