"""What ``initialize`` adds to optimizers: steps that can be skipped, schedulers, copies, and steps without a wait."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F

from amp_migrate.apex import _native

from . import needs_float16
from .scenarios import adam, batch, mlp, poison, scales, sgd, tensors, train

LEVELS = ("O0", "O1", "O2", "O3")


def start(amp, level="O1", make=sgd, model=None, **options):
    model = model or mlp()
    return amp.initialize(model, make(model), **{"opt_level": level, "verbosity": 0, **options})


def backward(amp, model, optimizer, i=0, bad=False, **options):
    x, y = batch(i)
    loss = F.mse_loss(model(x).float(), y)
    with amp.scale_loss(poison(loss) if bad else loss, optimizer, **options) as scaled:
        scaled.backward()


@pytest.mark.parametrize("level", ["O0", "O1"])
def test_LBFGS_converges_with_its_closure(amp, level) -> None:  # S19
    model = mlp()
    make = lambda m: torch.optim.LBFGS(m.parameters(), lr=0.3, max_iter=4)  # noqa: E731
    model, optimizer = amp.initialize(model, make(model), opt_level=level, loss_scale=16.0, verbosity=0)
    x, y = batch(0)

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x).float(), y)
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(5)]
    assert losses[-1] < losses[0] / 3


@pytest.mark.parametrize("keyword", [False, True])
def test_a_closure_is_refused_at_O2(amp, keyword) -> None:  # S19
    _, optimizer = start(amp, "O2")
    with pytest.raises(RuntimeError, match="does not support closure"):
        optimizer.step(closure=lambda: None) if keyword else optimizer.step(lambda: None)


@pytest.mark.parametrize("keyword", [False, True])
@pytest.mark.parametrize("verbosity", [0, 1])
def test_a_closure_is_refused_while_a_skip_is_pending_and_the_skip_stays(amp, keyword, verbosity) -> None:  # S19
    model, optimizer = start(amp, "O0", loss_scale="dynamic", verbosity=verbosity)
    backward(amp, model, optimizer, bad=True)
    before = tensors(model.parameters())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="does not support closure"):
            optimizer.step(closure=lambda: None) if keyword else optimizer.step(lambda: None)
    optimizer.step()
    assert tensors(model.parameters()) == before
    optimizer.zero_grad()
    backward(amp, model, optimizer)
    optimizer.step()
    assert tensors(model.parameters()) != before


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("bad", [(), (0,), (1,), (0, 1, 2)])
def test_schedulers_never_warn(amp, level, before, bad, no_warnings) -> None:  # S20, S21
    model = mlp()
    optimizer = sgd(model)
    make = lambda: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)  # noqa: E731
    schedule = make() if before else None
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale="dynamic", verbosity=0)
    schedule = schedule or make()
    amp._amp_state.loss_scalers[0]._loss_scale = 256.0
    start, lrs = tensors(model.parameters()), []
    for i in range(3):
        train(amp, model, optimizer, 1, first=i, bad=bad)
        assert (tensors(model.parameters()) == start) == (set(range(i + 1)) <= set(bad))
        schedule.step()
        lrs.append(optimizer.param_groups[0]["lr"])
    assert lrs == [0.05, 0.025, 0.0125]


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_a_group_added_before_the_first_backward_trains(amp, level) -> None:  # S27
    model = mlp()
    optimizer = sgd(model)
    group, groups = optimizer.param_groups[0], optimizer.param_groups
    late = torch.nn.Parameter(torch.full((2,), 0.25))
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale=256.0, verbosity=0)
    optimizer.add_param_group({"params": [late]})
    assert optimizer.param_groups is groups and optimizer.param_groups[0] is group
    assert any(p is late for p in amp.master_params(optimizer))
    optimizer.zero_grad()
    x, y = batch(0)
    with amp.scale_loss(F.mse_loss(model(x).float() + late, y), optimizer) as scaled:
        scaled.backward()
    assert float(late.grad.abs().max()) < 2  # a true gradient, not a scaled one
    optimizer.step()
    assert late.tolist() != [0.25, 0.25]


@pytest.mark.parametrize("level", LEVELS)
def test_step_before_any_backward_does_nothing(amp, level) -> None:  # S29
    model, optimizer = start(amp, level)
    before = tensors(model.parameters())
    optimizer.step()
    optimizer.zero_grad()
    optimizer.step()
    assert tensors(model.parameters()) == before


@pytest.mark.parametrize("level", ["O0", "O1", "O3"])
def test_a_plain_backward_and_step_train(amp, level) -> None:  # S57
    model, optimizer = start(amp, level)
    before = tensors(model.parameters())
    x, y = batch(0)
    F.mse_loss(model(x).float(), y).backward()
    grad, weight = model[0].weight.grad.clone(), model[0].weight.detach().clone()
    optimizer.step()
    assert tensors(model.parameters()) != before
    assert torch.allclose(model[0].weight, weight - 0.1 * grad, atol=1e-3 if level == "O3" else 1e-6)


class Wrapper:
    """Has an optimizer's interface without being one, as LARC and Lookahead have."""

    def __init__(self, optimizer):
        self.optim = optimizer

    def __getattr__(self, name):
        if name == "optim":
            raise AttributeError(name)
        return getattr(self.optim, name)

    @property
    def param_groups(self):
        return self.optim.param_groups

    def step(self, closure=None):
        return self.optim.step()

    def zero_grad(self, *args, **kwargs):
        return self.optim.zero_grad(*args, **kwargs)


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_a_wrapper_that_is_no_optimizer_is_accepted(amp, level) -> None:  # S31
    model = mlp()
    wrapper = Wrapper(sgd(model))
    model, optimizer = amp.initialize(model, wrapper, opt_level=level, loss_scale="dynamic", verbosity=0)
    assert optimizer is wrapper
    amp._amp_state.loss_scalers[0]._loss_scale = 256.0
    out = train(amp, model, optimizer, 3, bad=(1,))
    assert out[0]["params"] == out[1]["params"] != out[2]["params"]


# ---------------------------------------------------------------------------------- copies


@pytest.mark.parametrize("level", LEVELS)
def test_a_deep_copy_of_model_and_optimizer_trains_on_its_own(amp, level) -> None:  # S35
    make = sgd if level == "O3" else adam  # Adam's squares vanish in float16
    model, optimizer = start(amp, level, make=make, model=mlp(batchnorm=True), loss_scale=64.0)
    train(amp, model, optimizer, 2)
    twin_model, twin = copy.deepcopy((model, optimizer))
    assert hasattr(twin, "_amp_stash") and twin._amp_stash is not optimizer._amp_stash
    before = tensors(model.parameters())
    copied = train(amp, twin_model, twin, 3, first=2)
    assert tensors(model.parameters()) == before
    original = train(amp, model, optimizer, 3, first=2)
    assert [r["params"] for r in copied] == [r["params"] for r in original]
    assert copied[-1]["params"] != before


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_a_deep_copy_keeps_a_pending_skip_to_itself(amp, level) -> None:
    model, optimizer = start(amp, level, loss_scale="dynamic")
    optimizer.zero_grad()
    backward(amp, model, optimizer, bad=True)
    twin_model, twin = copy.deepcopy((model, optimizer))
    before = tensors(model.parameters())
    twin.step()
    optimizer.step()
    assert tensors(model.parameters()) == tensors(twin_model.parameters()) == before


@pytest.mark.parametrize("level", LEVELS)
def test_a_pickled_optimizer_is_a_plain_one(amp, level) -> None:  # S35
    model, optimizer = start(amp, level, make=adam)
    train(amp, model, optimizer, 1)
    data = pickle.dumps(optimizer)
    assert b"amp_migrate" not in data and b"_amp" not in data
    plain = pickle.loads(data)
    assert type(plain) is torch.optim.Adam
    assert not hasattr(plain, "_amp_stash") and "step" not in vars(plain)
    amp.initialize(mlp(), plain, opt_level=level, verbosity=0)  # and may be initialized again
    assert hasattr(plain, "_amp_stash")


def test_an_initialized_optimizer_is_freed_by_reference_counting_or_the_collector(amp) -> None:
    import weakref

    model, optimizer = start(amp, "O1")
    train(amp, model, optimizer, 1)
    watched = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert watched() is None


def test_losses_that_never_lead_to_a_step_cost_no_memory(amp) -> None:
    model, optimizer = start(amp, "O0", loss_scale="dynamic", num_losses=2)
    for i in range(200):
        optimizer.zero_grad()
        backward(amp, model, optimizer, i % 3, loss_id=i % 2)
    assert len(optimizer._amp_stash.overflows) <= 64


# ---------------------------------------------------------------------------------- without a wait


def _fused_adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01, fused=True)


def _has_fused_adam() -> bool:
    try:
        parameter = torch.nn.Parameter(torch.ones(2))
        parameter.grad = torch.ones(2)
        torch.optim.Adam([parameter], fused=True).step()
    except (TypeError, RuntimeError):
        return False
    return True


needs_fused = pytest.mark.skipif(not _has_fused_adam(), reason="this torch has no fused Adam on a CPU")


def count_waits(function) -> int:
    """How often ``function`` reads a number back from a tensor."""
    dispatch = pytest.importorskip("torch.utils._python_dispatch")
    if not hasattr(dispatch, "TorchDispatchMode"):
        pytest.skip("this torch has no dispatch modes (1.12)")

    class Counter(dispatch.TorchDispatchMode):
        waits = 0

        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            self.waits += "_local_scalar_dense" in str(op)
            return op(*args, **(kwargs or {}))

    with Counter() as counter:
        function()
    return counter.waits


def _iteration(amp, model, optimizer, i, bad=False):
    optimizer.zero_grad()
    backward(amp, model, optimizer, i, bad)
    optimizer.step()


@needs_fused
@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_a_fused_optimizer_steps_without_waiting_for_the_device(amp, level) -> None:
    model, optimizer = start(amp, level, make=_fused_adam, loss_scale="dynamic")
    _iteration(amp, model, optimizer, 0)
    assert count_waits(lambda: [_iteration(amp, model, optimizer, i, bad=i == 2) for i in range(1, 4)]) == 0
    assert scales(amp)["loss_scaler0"] == {"loss_scale": 2.0**15, "unskipped": 1}


@pytest.mark.skipif(
    _native.grad_scaler_class("cpu") is None,
    reason="this torch has no GradScaler for a CPU; ours in its place waits more",
)
@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
@pytest.mark.parametrize("verbosity", [0, 1])
def test_any_other_optimizer_waits_once_per_step(amp, level, verbosity) -> None:
    model, optimizer = start(amp, level, loss_scale="dynamic", verbosity=verbosity)
    amp._amp_state.loss_scalers[0]._loss_scale = 256.0
    _iteration(amp, model, optimizer, 0)
    assert count_waits(lambda: [_iteration(amp, model, optimizer, i) for i in range(1, 5)]) == 4
    assert scales(amp)["loss_scaler0"]["unskipped"] == 5


def test_a_static_scale_never_waits(amp) -> None:
    model, optimizer = start(amp, "O1", loss_scale=128.0, verbosity=1)
    assert count_waits(lambda: [_iteration(amp, model, optimizer, i) for i in range(3)]) == 0


@needs_fused
@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
@pytest.mark.parametrize("bad", [(), (0,), (1, 2), (3,)])
def test_without_waiting_the_parameters_are_the_same(amp, level, bad) -> None:
    runs: list = []
    for verbosity in (0, 1):
        model, optimizer = start(amp, level, make=_fused_adam, loss_scale="dynamic", verbosity=verbosity)
        amp._amp_state.loss_scalers[0]._scale_seq_len = 3
        amp._amp_state.loss_scalers[0]._loss_scale = 512.0
        steps = []
        for i in range(6):
            _iteration(amp, model, optimizer, i, bad=i in bad)
            steps.append(tensors(model.parameters()))
        runs.append((steps, scales(amp), [float(s["step"]) for s in optimizer.state.values()]))
    assert runs[0] == runs[1]
    steps = [tensors(mlp().parameters()), *runs[0][0]]
    if level == "O0":
        assert tuple(i for i in range(6) if steps[i] == steps[i + 1]) == bad


@needs_fused
def test_without_waiting_every_overflow_before_the_step_counts(amp) -> None:
    model, optimizer = start(amp, "O0", make=_fused_adam, loss_scale="dynamic")
    before = tensors(model.parameters())
    for order in ((True, False), (False, True), (True, True)):
        optimizer.zero_grad()
        for i, bad in enumerate(order):
            backward(amp, model, optimizer, i, bad)
        optimizer.step()
        assert tensors(model.parameters()) == before
    optimizer.zero_grad()
    backward(amp, model, optimizer, 0)
    optimizer.step()
    assert tensors(model.parameters()) != before
    assert scales(amp)["loss_scaler0"]["loss_scale"] == 2.0**12


@needs_fused
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("second", [sgd, _fused_adam])
def test_without_waiting_the_skip_hits_every_optimizer_of_the_block(amp, both, second) -> None:
    left, right = mlp(), mlp()
    (left, right), (a, b) = amp.initialize(
        [left, right], [_fused_adam(left), second(right)], opt_level="O0", loss_scale="dynamic", verbosity=0
    )
    before = tensors(left.parameters()), tensors(right.parameters())
    x, y = batch(0)
    loss = F.mse_loss(left(x), y)
    with amp.scale_loss((poison(loss) if both else loss) + poison(F.mse_loss(right(x), y)), [a, b]) as scaled:
        scaled.backward()
    a.step()
    b.step()
    assert (tensors(left.parameters()), tensors(right.parameters())) == before
    assert scales(amp)["loss_scaler0"] == {"loss_scale": 2.0**15, "unskipped": 0}


@needs_float16
def test_steps_run_without_casts(amp) -> None:
    seen = []

    class Watching(torch.optim.SGD):
        def step(self, closure=None):
            seen.append(F.linear(torch.ones(1, 2), torch.ones(2, 2)).dtype)
            return super().step(closure)

    model = mlp()
    model, optimizer = amp.initialize(model, Watching(model.parameters(), lr=0.1), opt_level="O1", verbosity=0)
    optimizer.step()
    assert seen == [torch.float32]
    assert F.linear(torch.ones(1, 2), torch.ones(2, 2)).dtype == torch.float16


@pytest.mark.parametrize("level", LEVELS)
def test_training_warns_of_nothing(amp, level) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, optimizer = start(amp, level, model=mlp(batchnorm=True), loss_scale="dynamic")
        train(amp, model, optimizer, 3, bad=(1,), clip=1.0)
        amp.load_state_dict(amp.state_dict())
