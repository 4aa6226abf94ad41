"""Casts in the model's forward, and what may be done with an initialized model."""

from __future__ import annotations

import collections
import copy
import functools
import importlib
import io
import os
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from amp_migrate.apex import _native
from amp_migrate.apex.amp._patches import patches

from . import needs_float16
from .recording import in_child
from .scenarios import batch, fill, mlp, poison, sgd, tensors, wave

LEVELS = ("O0", "O1", "O2", "O3")
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:TF32:UserWarning")


class Net(torch.nn.Module):
    """At module level, so that it can be pickled."""

    def __init__(self):
        super().__init__()
        self.body = mlp(batchnorm=True)
        self.history = [1, 2]

    def forward(self, x, scale=1.0):
        return self.body(x) * scale


def start(amp, model, level="O1", **options):
    return amp.initialize(model, sgd(model), **{"opt_level": level, "loss_scale": 64.0, "verbosity": 0, **options})


def moves(tensor):
    """Whether there is anything but zeros in it (torch 1.6 has no ``any`` for floats)."""
    return bool((tensor != 0).any())


def half_of(level):
    """The dtype in which an O1 or O3 model computes on this torch."""
    return torch.float16 if level != "O0" and _native.autocast_works("cpu", torch.float16) else torch.float32


# ---------------------------------------------------------------------------------- copies


@pytest.mark.parametrize("level", LEVELS)
def test_a_deep_copy_is_independent_and_still_casts(amp, level) -> None:  # S24
    model, _ = start(amp, fill(Net()).eval(), level)
    x = batch(0)[0]
    twin = copy.deepcopy(model)
    for p in twin.parameters():
        p.data.zero_()
    twin.history.append(3)
    assert not moves(twin(x)) and moves(model(x))
    assert model.history == [1, 2]
    assert twin(x).dtype == model(x).dtype
    assert isinstance(twin, Net) and twin.__class__ is Net


@pytest.mark.parametrize("level", LEVELS)
def test_a_shallow_copy_shares_the_weights_and_casts(amp, level) -> None:
    model, _ = start(amp, fill(Net()).eval(), level)
    twin = copy.copy(model)
    assert twin.body is model.body
    assert torch.equal(twin(batch(0)[0]), model(batch(0)[0]))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("saved", ["pickle", "torch"])
def test_a_pickled_model_is_a_plain_one(amp, level, saved) -> None:
    model, _ = start(amp, fill(Net()).eval(), level)
    if saved == "pickle":
        data = pickle.dumps(model)
        plain = pickle.loads(data)
    else:
        file = io.BytesIO()
        torch.save(model, file, _use_new_zipfile_serialization=False)
        data = file.getvalue()
        file.seek(0)
        kwargs = {"weights_only": False} if hasattr(torch, "get_default_device") else {}
        plain = torch.load(file, **kwargs)
    assert b"amp_migrate" not in data and b"_amp_" not in data
    assert type(plain) is Net
    assert [p.dtype for p in plain.parameters()] == [p.dtype for p in model.parameters()]
    assert tensors(plain.parameters()) == tensors(model.parameters())
    assert not any(m._state_dict_hooks for m in plain.modules())


@pytest.mark.parametrize("level", LEVELS)
def test_a_forward_attribute_of_the_instance_is_wrapped_and_copied(amp, level) -> None:
    model = fill(Net()).eval()
    calls: list = []
    model.forward = functools.partial(_double, model.body, calls)
    x = batch(0)[0]
    expected = _double(model.body, [], x)
    model, _ = start(amp, model, level)
    results = [model(x), model.forward(x), copy.deepcopy(model)(x)]
    assert len(calls) == 2 and all(torch.allclose(r.float(), expected, atol=4e-3) for r in results)
    patches.undo_all()
    assert isinstance(vars(model)["forward"], functools.partial)


def _double(body, calls, x):
    calls.append(1)
    return body(x) * 2


class OwnCopy(Net):
    def __deepcopy__(self, memo):
        other = OwnCopy()
        other.load_state_dict(self.state_dict())
        other.copied = True
        return other


@pytest.mark.parametrize("level", ["O0", "O1"])
def test_a_users_own_deepcopy_is_called_and_the_copy_casts(amp, level) -> None:
    model, _ = start(amp, fill(OwnCopy()).eval(), level)
    twin = copy.deepcopy(model).eval()
    assert twin.copied and twin(batch(0)[0]).dtype == model(batch(0)[0]).dtype == half_of(level)


# ---------------------------------------------------------------------------------- export


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_jit_trace_gives_the_model_itself(amp, level) -> None:  # S66
    model, _ = start(amp, mlp().eval(), level)
    x = batch(0)[0]
    traced = torch.jit.trace(model, x)
    other = batch(5)[0]
    assert torch.allclose(traced(other).float(), model(other).float(), atol=2e-3)


@pytest.mark.parametrize("level", ["O0", "O1"])
def test_jit_script_gives_the_model_itself(amp, level) -> None:  # S66
    expected = mlp()(batch(1)[0])
    model, _ = start(amp, mlp().eval(), level)
    scripted = torch.jit.script(model)
    assert torch.allclose(scripted(batch(1)[0]).float(), expected, atol=2e-3)


@pytest.mark.skipif(
    not hasattr(torch, "compiler"),
    reason="this torch has no torch.compile, or dynamo of torch 2.0, which breaks graphs at what later ones trace",
)
@pytest.mark.parametrize("level", LEVELS)
def test_compile_makes_one_graph_without_a_break(amp, level) -> None:
    testing = pytest.importorskip("torch._dynamo.testing")
    model, optimizer = start(amp, mlp(), level)
    torch._dynamo.reset()
    counter = testing.CompileCounterWithBackend("eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for i in range(3):
        x, y = batch(i)
        optimizer.zero_grad()
        result = compiled(x)
        assert result.dtype == model(x).dtype
        assert torch.allclose(result.float(), model(x).float(), atol=2e-3)
        with amp.scale_loss(F.mse_loss(result.float(), y), optimizer) as scaled:
            scaled.backward()
        optimizer.step()
    assert counter.frame_count == 1
    torch._dynamo.reset()


# ---------------------------------------------------------------------------------- where casts are on


def in_thread(function):
    box: list = []
    thread = threading.Thread(target=lambda: box.append(function()))
    thread.start()
    thread.join()
    return box[0]


@needs_float16
def test_in_another_thread_casts_are_on_inside_the_model_only(amp) -> None:
    model, _ = start(amp, mlp())

    def work():
        inside = model(batch(0)[0]).dtype
        return inside, F.linear(torch.ones(1, 2), torch.ones(2, 2)).dtype, torch.is_autocast_enabled()

    assert in_thread(work)[:2] == (torch.float16, torch.float32)
    assert F.linear(torch.ones(1, 2), torch.ones(2, 2)).dtype == torch.float16


@needs_float16
def test_threads_with_replicas_train_their_own_weights(amp) -> None:
    model, _ = start(amp, mlp())
    replicas = [copy.deepcopy(model) for _ in range(2)]
    for p in replicas[1].parameters():
        p.data.zero_()
    results = [in_thread(lambda r=r: r(batch(0)[0])) for r in replicas]
    assert [r.dtype for r in results] == [torch.float16] * 2
    assert moves(results[0]) and not moves(results[1])


@needs_float16
def test_replicas_of_data_parallel_cast_in_their_threads_and_train_the_original(amp, monkeypatch) -> None:
    replicate = importlib.import_module("torch.nn.parallel.replicate")

    def clones_instead_of_gpu_copies(tensors, devices, detach=False):
        return [[t.clone() for t in tensors] for _ in devices]

    monkeypatch.setattr(replicate, "_broadcast_coalesced_reshape", clones_instead_of_gpu_copies)
    model, optimizer = start(amp, mlp())
    replicas = replicate.replicate(model, [0, 1])
    outputs = [in_thread(lambda r=r, i=i: r(batch(i)[0])) for i, r in enumerate(replicas)]
    assert [o.dtype for o in outputs] == [torch.float16] * 2
    with amp.scale_loss(torch.cat(outputs).float().pow(2).mean(), optimizer) as scaled:
        scaled.backward()
    got = [p.grad.clone() for p in model.parameters()]
    optimizer.zero_grad()
    with amp.scale_loss(torch.cat([model(batch(i)[0]) for i in (0, 1)]).float().pow(2).mean(), optimizer) as scaled:
        scaled.backward()
    for replicated, alone in zip(got, model.parameters()):
        torch.testing.assert_close(replicated, alone.grad, rtol=1e-2, atol=1e-3)


@needs_float16
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_worker_does_not_cast(amp) -> None:
    start(amp, mlp())
    assert in_child(lambda: str(F.linear(torch.ones(1, 2), torch.ones(2, 2)).dtype)) == "torch.float32"


@needs_float16
def test_disable_casts_holds_inside_models_and_ends_after_an_exception(amp) -> None:
    model, _ = start(amp, mlp())
    with pytest.raises(KeyError), amp.disable_casts():
        assert model(batch(0)[0]).dtype == torch.float32
        raise KeyError
    assert model(batch(0)[0]).dtype == torch.float16
    assert F.linear(torch.ones(1, 2), torch.ones(2, 2)).dtype == torch.float16


@needs_float16
def test_a_users_own_autocast_block_keeps_its_say(amp) -> None:
    model, _ = start(amp, mlp())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(batch(0)[0]).dtype == torch.bfloat16
    assert model(batch(0)[0]).dtype == torch.float16
    with torch.autocast("cpu", enabled=False):
        assert model(batch(0)[0]).dtype == torch.float32
    assert F.linear(torch.ones(1, 2), torch.ones(2, 2)).dtype == torch.float16


@needs_float16
def test_an_exception_in_forward_leaves_casts_as_they_were(amp) -> None:
    class Failing(torch.nn.Linear):
        def forward(self, x):
            raise KeyError

    model, _ = start(amp, Failing(2, 2))
    before = _native.get_autocast("cpu"), _native.get_cache_enabled()

    def fail():
        with pytest.raises(KeyError):
            model(torch.ones(1, 2))
        return _native.get_autocast("cpu").enabled

    assert fail() is True
    assert in_thread(fail) is False
    assert (_native.get_autocast("cpu"), _native.get_cache_enabled()) == before


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_forward_without_grad_does_not_cost_later_gradients(amp, level) -> None:  # S26
    model, _ = start(amp, mlp(), level)
    for _ in range(2):
        with torch.no_grad():
            model(batch(0)[0])
        model(batch(0)[0]).float().sum().backward()
        assert all(p.grad is not None and moves(p.grad) for p in model.parameters())
        model.zero_grad()


def test_no_forward_computes_with_weights_from_before_a_step(amp) -> None:
    model, optimizer = start(amp, mlp())
    x = batch(0)[0]
    first = model(x)
    outside = F.linear(x, model[0].weight)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2)
    assert not torch.equal(model(x), first)
    assert torch.equal(F.linear(x, model[0].weight), outside * 2)


class Product(torch.autograd.Function):
    """Multiplies what was saved in float32 with a gradient that arrives in float16."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w, grad.t() @ x


@pytest.mark.parametrize("inside", [True, False])
def test_a_users_function_may_mix_types_in_backward(amp, inside) -> None:
    class Custom(torch.nn.Linear):
        def forward(self, x):
            return Product.apply(x, self.weight)

    model = fill(Custom(6, 3))
    x = batch(0)[0]
    model(x).pow(2).sum().backward()
    expected = model.weight.grad.clone()
    model.weight.grad = None
    model, optimizer = start(amp, model)
    result = model(x) if inside else Product.apply(x, model.weight)
    with amp.scale_loss(result.float().pow(2).sum(), optimizer) as scaled:
        scaled.backward()
    assert model.weight.grad.dtype == torch.float32
    assert torch.allclose(model.weight.grad, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_checkpointing_changes_nothing(amp, reentrant, level) -> None:
    class Checkpointed(torch.nn.Module):
        on = True

        def __init__(self):
            super().__init__()
            self.first, self.second = mlp(), fill(torch.nn.Linear(2, 2))

        def forward(self, x):
            if not self.on:
                return self.second(self.first(x))
            try:
                return self.second(checkpoint(self.first, x, use_reentrant=reentrant))
            except ValueError:  # before torch 1.11 there is only the reentrant kind
                return self.second(checkpoint(self.first, x))

    model, optimizer = start(amp, Checkpointed(), level)
    found = []
    for model.on in (False, True):
        optimizer.zero_grad()
        x, y = batch(0)
        with amp.scale_loss(F.mse_loss(model(x.requires_grad_()).float(), y), optimizer) as scaled:
            scaled.backward()
        found.append([g.grad.clone() for g in amp.master_params(optimizer)])
    assert all(torch.equal(a, b) for a, b in zip(*found))
    assert moves(found[0][0])


@pytest.mark.parametrize("scaled", [True, False])
def test_backward_of_a_float32_region_stays_float32(amp, scaled) -> None:
    w = torch.full((2, 2), 1 + 2.0**-12).requires_grad_()
    x = torch.full((1, 2), 1 + 2.0**-13).requires_grad_()
    model, optimizer = start(amp, mlp())
    with amp.disable_casts():
        loss = F.linear(x, w).sum()
    if scaled:
        with amp.scale_loss(loss, optimizer) as s:
            s.backward()
    else:
        loss.backward()
    factor = 64.0 if scaled else 1.0
    assert torch.equal(w.grad, x.detach().expand(2, 2) * factor)
    assert torch.equal(x.grad, w.detach().sum(0, keepdim=True) * factor)


@needs_float16
def test_rnn_weights_need_not_be_contiguous(amp) -> None:  # S62
    for kind, bidirectional in ((torch.nn.LSTM, False), (torch.nn.GRU, True)):
        rnn = kind(4, 4, bidirectional=bidirectional)
        rnn.weight_hh_l0 = torch.nn.Parameter(rnn.weight_hh_l0.detach().clone())
        rnn, optimizer = start(amp, rnn)
        with torch.backends.mkldnn.flags(enabled=False):  # oneDNN's float16 LSTM needs special hardware
            result, _ = rnn(wave(3, 2, 4))
            with amp.scale_loss(result.float().sum(), optimizer) as scaled:
                scaled.backward()
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in rnn.parameters())


def test_a_gradient_penalty_recovers_from_an_overflow(amp) -> None:  # S17
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model, optimizer = amp.initialize(
        fill(model, 0.3),
        torch.optim.SGD(model.parameters(), lr=0.01),
        opt_level="O1",
        loss_scale="dynamic",
        verbosity=0,
    )
    amp._amp_state.loss_scalers[0]._loss_scale = 256.0
    skipped = []
    for i in range(20):
        x = batch(i, n=8)[0].requires_grad_()
        optimizer.zero_grad()
        (g,) = torch.autograd.grad(model(x).float().sum(), x, create_graph=True)
        loss = (g.float().norm(2, 1) - 1).pow(2).mean()
        assert torch.isfinite(loss)
        before = tensors(model.parameters())
        with amp.scale_loss(poison(loss) if i == 3 else loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        if tensors(model.parameters()) == before:
            skipped.append(i)
    assert skipped == [3]


# ---------------------------------------------------------------------------------- inputs and outputs


class Echo(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, value):
        self.got = value
        return value


Pair = collections.namedtuple("Pair", "a b")


@needs_float16
@pytest.mark.parametrize("level", ["O2", "O3"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: [x], lambda x: (x,), lambda x: {"k": x}, lambda x: Pair(x, 1), lambda x: collections.deque([x]),
        lambda x: collections.OrderedDict(k=[x]), lambda x: collections.defaultdict(list, k=(x,)),
        lambda x: {1: {"k": [(x,)]}},
    ],
)  # fmt: skip
def test_inputs_and_outputs_are_cast_in_containers_of_the_same_type(amp, level, wrap) -> None:
    model = amp.initialize(Echo(), opt_level=level, verbosity=0)
    value = wrap(torch.ones(2))
    result = model(value)

    def find(v):
        if torch.is_tensor(v):
            return v
        return find(next(iter(v.values())) if isinstance(v, dict) else v[0])

    assert type(model.got) is type(value) and type(result) is type(value)
    assert find(model.got).dtype == torch.float16
    assert find(result).dtype == torch.float32
    assert find(value).dtype == torch.float32  # the caller's own is left alone


def test_signature_and_docs_of_forward_stay(amp) -> None:
    import inspect

    before = inspect.signature(Net().forward)
    model, _ = start(amp, Net())
    assert inspect.signature(model.forward) == before
    assert "Net" in repr(model).splitlines()[0]


def test_super_and_class_checks_in_a_users_model_work(amp) -> None:
    class Old(torch.nn.Module):
        def __init__(self):
            super(self.__class__, self).__init__()
            self.net = mlp()

        def forward(self, x):
            assert self.__class__ is Old
            return self.net(x)

        def train(self, mode=True):
            return super(self.__class__, self).train(mode)

    model, _ = start(amp, Old())
    model.train()
    assert model(batch(0)[0]).shape == (4, 2)


def test_a_scripted_model_is_left_alone(amp) -> None:
    scripted = torch.jit.script(mlp())
    result = amp.initialize(scripted, opt_level="O1", verbosity=0)
    assert result is scripted and result(batch(0)[0]).shape == (4, 2)


@pytest.mark.parametrize("level", LEVELS)
def test_forward_hooks_see_what_they_saw(amp, level) -> None:
    model, _ = start(amp, mlp(), level)
    seen = []
    model.register_forward_pre_hook(lambda m, args: seen.append(args[0].dtype))
    model.register_forward_hook(lambda m, args, out: seen.append(out.dtype))
    x = batch(0)[0]
    out = model(x)
    assert seen == [torch.float32, out.dtype]


@pytest.mark.parametrize("level", LEVELS)
def test_data_parallel_wraps_afterwards(amp, level) -> None:
    model, optimizer = start(amp, mlp(), level)
    parallel = torch.nn.DataParallel(model)
    x, y = batch(0)
    with amp.scale_loss(F.mse_loss(parallel(x).float(), y), optimizer) as scaled:
        scaled.backward()
    assert all(p.grad is not None for p in model.parameters())
