"""Behaviour of Apex amp, as small training runs whose traces can be compared.

Every scenario is a function ``scenario(amp) -> list of records``.  ``amp`` is any module with the
Apex amp interface.  ``record.py`` ran them with the real Apex (its last release with ``apex.amp``,
on a CPU) and wrote ``traces.json``; whoever implements the interface runs the same functions and
compares: loss scales, ``unskipped`` counters, skipped steps, dtypes and error types exactly,
tensors to the tolerance that ``TOLERANCE`` gives.

Weights and data come from formulas, not from a random generator, so that every torch version
builds the same ones.
"""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F

SCENARIOS = {}

#: relative and absolute tolerance of a tensor comparison, by the compute type of the run
TOLERANCE = {"fp32": (1e-5, 1e-7), "fp16": (1e-2, 2e-3)}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


# ---------------------------------------------------------------------------------- ingredients


def wave(*shape, phase=0.0, gain=0.5):
    """A tensor of smooth, reproducible values in [-gain, gain]."""
    n = math.prod(shape)
    return (gain * torch.sin(torch.arange(n, dtype=torch.float64) * 1.7 + phase)).float().reshape(shape)


def fill(module, gain=0.5):
    for i, p in enumerate(module.parameters()):
        p.data.copy_(wave(*p.shape, phase=0.3 * i, gain=gain))
    return module


def mlp(batchnorm=False):
    layers = [torch.nn.Linear(6, 8)]
    if batchnorm:
        layers.append(torch.nn.BatchNorm1d(8))
    layers += [torch.nn.Tanh(), torch.nn.Linear(8, 2)]
    return fill(torch.nn.Sequential(*layers))


def batch(i, n=4):
    return wave(n, 6, phase=i, gain=1.0), wave(n, 2, phase=2 * i + 1, gain=1.0)


class Poison(torch.autograd.Function):
    """Identity whose backward replaces the gradient's first entry by ``value``."""

    @staticmethod
    def forward(ctx, x, value):
        ctx.value = value
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        grad.view(-1)[0] = ctx.value
        return grad, None


def poison(x, value=float("inf")):
    return Poison.apply(x, value)


def tensors(params):
    return [p.detach().double().reshape(-1).tolist() for p in params]


def grads(params):
    return [None if p.grad is None else p.grad.detach().double().reshape(-1).tolist() for p in params]


def scales(amp):
    return {k: dict(v) for k, v in amp.state_dict().items()}


def caught(function):
    """The name of the exception type that ``function`` raises, or None."""
    try:
        function()
    except Exception as error:
        return type(error).__name__
    return None


def train(amp, model, optimizer, steps, *, bad=(), bad_value=float("inf"), clip=None, first=0, after=None):
    """A plain loop; ``bad`` names the steps whose gradient overflows."""
    out = []
    for i in range(first, first + steps):
        x, y = batch(i)
        optimizer.zero_grad()
        prediction = model(x)
        loss = F.mse_loss(prediction.float(), y)
        if i in bad:
            loss = poison(loss, bad_value)
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(list(amp.master_params(optimizer)), clip)
        optimizer.step()
        out.append(
            {
                "loss": loss.item(),
                "dtype": str(prediction.dtype),
                "scales": scales(amp),
                "params": tensors(model.parameters()),
            }
        )
        if after:
            after(i)
    return out


def sgd(model, **kw):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, **kw})


def adam(model, **kw):
    return torch.optim.Adam(model.parameters(), **{"lr": 0.01, **kw})


# ---------------------------------------------------------------------------------- one loss


def _level(level, make_optimizer=sgd, batchnorm=False, steps=6, bad=(), clip=None, **kw):
    def run(amp):
        model = mlp(batchnorm)
        optimizer = make_optimizer(model)
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, **kw)
        return train(amp, model, optimizer, steps, bad=bad, clip=clip)

    return run


def add(name, compute, run):
    run.__name__ = name
    run.compute = compute
    SCENARIOS[name] = run


for _l, _c in (("O0", "fp32"), ("O1", "fp16"), ("O2", "fp16"), ("O3", "fp16")):
    add(f"{_l}_plain_sgd", _c, _level(_l))
    add(f"{_l}_static_scale", _c, _level(_l, loss_scale=128.0))
    add(f"{_l}_static_scale_as_text", _c, _level(_l, loss_scale="128.0"))
    add(f"{_l}_dynamic", _c, _level(_l, loss_scale="dynamic"))
add("O0_dynamic_overflow_at_2", "fp32", _level("O0", loss_scale="dynamic", bad=(2,)))
add("O1_overflow_at_2_and_3", "fp16", _level("O1", bad=(2, 3)))
add("O2_overflow_at_2_adam", "fp16", _level("O2", adam, bad=(2,)))
add("O1_nan_at_3", "fp16", _level("O1", bad=(3,)))
add("O1_adam_clip", "fp16", _level("O1", adam, clip=0.05))
add("O2_batchnorm_clip", "fp16", _level("O2", batchnorm=True, clip=0.05))
add("O2_batchnorm_half", "fp16", _level("O2", batchnorm=True, keep_batchnorm_fp32=False))
add("O1_min_loss_scale", "fp16", _level("O1", bad=(0, 1, 2, 3), min_loss_scale=2.0**14))
add("O1_max_loss_scale", "fp16", _level("O1", max_loss_scale=2.0**10))
add("O0_static_scale_overflow_is_not_skipped", "fp32", _level("O0", loss_scale=8.0, bad=(2,), steps=3))


def _scenario(compute):
    def mark(function):
        function.compute = compute
        return scenario(function)

    return mark


@_scenario("fp32")
def O0_disabled(amp):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, enabled=False, opt_level="O1", verbosity=0)
    out = []
    for i in range(3):
        x, y = batch(i)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        with amp.scale_loss(loss, optimizer) as scaled:
            out.append({"same": scaled is loss})
            scaled.backward()
        optimizer.step()
        out.append({"params": tensors(model.parameters())})
    return out


@_scenario("fp16")
def O1_scale_grows_after_2000(amp):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 1024.0, "unskipped": 1997}})
    return train(amp, model, optimizer, 5)


@_scenario("fp16")
def O1_growth_stops_at_the_ceiling(amp):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0, max_loss_scale=2048.0)
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 2048.0, "unskipped": 1998}})
    return train(amp, model, optimizer, 4)


@_scenario("fp16")
def O1_resume_from_state(amp):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    out = train(amp, model, optimizer, 3, bad=(1,))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), amp.state_dict()))
    out += train(amp, model, optimizer, 2, first=3)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    amp.load_state_dict(saved[2])
    out += train(amp, model, optimizer, 2, first=3)
    return out


# ---------------------------------------------------------------------------------- accumulation


def _accumulate(level, delay, bad=(), parts=2, steps=3):
    def run(amp):
        model = mlp()
        optimizer = sgd(model)
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
        out = []
        for i in range(steps):
            optimizer.zero_grad()
            for j in range(parts):
                x, y = batch(parts * i + j)
                loss = F.mse_loss(model(x).float(), y) / parts
                if (i, j) in bad:
                    loss = poison(loss)
                last = j == parts - 1
                with amp.scale_loss(loss, optimizer, delay_unscale=delay and not last) as scaled:
                    scaled.backward()
                out.append({"scales": scales(amp)})
            if not any(b[0] == i for b in bad):
                out.append({"grads": grads(list(amp.master_params(optimizer)))})
            optimizer.step()
            out.append({"scales": scales(amp), "params": tensors(model.parameters())})
        return out

    return run


for _l in ("O1", "O2"):
    add(f"{_l}_accumulate", "fp16", _accumulate(_l, False))
    add(f"{_l}_accumulate_delayed", "fp16", _accumulate(_l, True, parts=3))
    add(f"{_l}_accumulate_overflow_first", "fp16", _accumulate(_l, False, bad=((1, 0),)))
    add(f"{_l}_accumulate_overflow_last", "fp16", _accumulate(_l, False, bad=((1, 1),)))


@_scenario("fp16")
def O1_accumulate_natural_overflow(amp):
    """Nothing is poisoned: the loss is large enough that fp16 gradients overflow until the scale has come down."""
    model = mlp()
    optimizer = sgd(model, lr=1e-4, momentum=0.0)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    out = []
    for i in range(5):
        optimizer.zero_grad()
        for j in range(4):
            x, y = batch(4 * i + j)
            loss = F.mse_loss(model(x).float(), y) * 48
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
            out.append({"scales": scales(amp)})
        optimizer.step()
        out.append({"params": tensors(model.parameters())})
    return out


@_scenario("fp16")
def O1_accumulate_change_inside(amp):
    """What is done to gradients inside the block reaches the newest micro-batch only."""
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", loss_scale=256.0, verbosity=0)
    out = []
    for i in range(3):
        optimizer.zero_grad()
        for j in range(2):
            x, y = batch(2 * i + j)
            loss = F.mse_loss(model(x).float(), y)
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
                for p in model.parameters():
                    p.grad.mul_(0.5)
        out.append({"grads": grads(model.parameters())})
        optimizer.step()
        out.append({"params": tensors(model.parameters())})
    return out


# ---------------------------------------------------------------------------------- several losses


@_scenario("fp16")
def O1_two_losses_one_optimizer(amp):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", num_losses=2, verbosity=0)
    out = []
    for i in range(4):
        x, y = batch(i)
        optimizer.zero_grad()
        prediction = model(x).float()
        first, second = F.mse_loss(prediction, y), prediction.abs().mean()
        if i == 2:
            second = poison(second)
        with amp.scale_loss(first, optimizer, loss_id=0) as scaled:
            scaled.backward(retain_graph=True)
        with amp.scale_loss(second, optimizer, loss_id=1) as scaled:
            scaled.backward()
        optimizer.step()
        out.append({"scales": scales(amp), "params": tensors(model.parameters())})
    return out


@_scenario("fp16")
def O1_adversarial_pair(amp):
    generator, critic = mlp(), fill(torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)))
    opt_g, opt_d = adam(generator), adam(critic)
    (generator, critic), (opt_g, opt_d) = amp.initialize(
        [generator, critic], [opt_g, opt_d], opt_level="O1", num_losses=3, verbosity=0
    )
    out = []
    for i in range(4):
        x, y = batch(i)
        opt_d.zero_grad()
        real = F.binary_cross_entropy_with_logits(critic(y), torch.ones(4, 1))
        with amp.scale_loss(real, opt_d, loss_id=0) as scaled:
            scaled.backward()
        fake = F.binary_cross_entropy_with_logits(critic(generator(x).detach()), torch.zeros(4, 1))
        if i == 1:
            fake = poison(fake)
        with amp.scale_loss(fake, opt_d, loss_id=1) as scaled:
            scaled.backward()
        opt_d.step()
        opt_g.zero_grad()
        fool = F.binary_cross_entropy_with_logits(critic(generator(x)), torch.ones(4, 1))
        with amp.scale_loss(fool, opt_g, loss_id=2) as scaled:
            scaled.backward()
        opt_g.step()
        out.append(
            {"scales": scales(amp), "params": tensors(generator.parameters()), "critic": tensors(critic.parameters())}
        )
    return out


@_scenario("fp16")
def O1_one_loss_two_optimizers(amp):
    left, right = mlp(), mlp()
    opts = [sgd(left), adam(right)]
    models, opts = amp.initialize([left, right], opts, opt_level="O1", verbosity=0)
    out = []
    for i in range(4):
        x, y = batch(i)
        for o in opts:
            o.zero_grad()
        a, b = models[0](x).float(), models[1](x).float()
        if i == 2:
            b = poison(b)
        loss = F.mse_loss(a, y) + F.mse_loss(b, y)
        with amp.scale_loss(loss, opts) as scaled:
            scaled.backward()
        for o in opts:
            o.step()
        out.append(
            {"scales": scales(amp), "left": tensors(models[0].parameters()), "right": tensors(models[1].parameters())}
        )
    return out


# ---------------------------------------------------------------------------------- forms and errors


@_scenario("fp16")
def initialize_return_forms(amp):
    def kinds(value):
        return [kinds(v) for v in value] if isinstance(value, (list, tuple)) else type(value).__name__

    out = []
    m = mlp()
    out.append({"model_only": kinds(amp.initialize(m, opt_level="O1", verbosity=0))})
    m = mlp()
    out.append({"models_only": kinds(amp.initialize([m], opt_level="O1", verbosity=0))})
    m = mlp()
    out.append({"one_one": kinds(amp.initialize(m, sgd(m), opt_level="O1", verbosity=0))})
    m = mlp()
    out.append({"one_list": kinds(amp.initialize(m, [sgd(m)], opt_level="O1", verbosity=0))})
    m, n = mlp(), mlp()
    out.append({"list_one": kinds(amp.initialize([m, n], sgd(m), opt_level="O1", verbosity=0))})
    m, n = mlp(), mlp()
    out.append({"list_list": kinds(amp.initialize([m, n], [sgd(m), sgd(n)], opt_level="O1", verbosity=0))})
    return out


@_scenario("fp16")
def misuse_is_refused(amp):
    m = mlp()
    o = sgd(m)
    out = [{"bad_level": caught(lambda: amp.initialize(m, o, opt_level="01", verbosity=0))}]
    m = mlp()
    o = sgd(m)
    amp.initialize(m, o, opt_level="O1", verbosity=0)
    out.append({"same_optimizer_twice": caught(lambda: amp.initialize(mlp(), o, opt_level="O1", verbosity=0))})
    m = mlp()
    out.append({"tuple_of_models": caught(lambda: amp.initialize((m,), sgd(m), opt_level="O1", verbosity=0))})
    m = mlp()
    out.append({"tuple_of_optimizers": caught(lambda: amp.initialize(m, (sgd(m),), opt_level="O1", verbosity=0))})
    m = torch.nn.DataParallel(mlp())
    out.append({"already_parallel": caught(lambda: amp.initialize(m, sgd(m), opt_level="O1", verbosity=0))})
    m = mlp().half()
    out.append({"already_half": caught(lambda: amp.initialize(m, sgd(m), opt_level="O1", verbosity=0))})
    m = mlp()
    o = sgd(m)
    m, o = amp.initialize(m, o, opt_level="O2", verbosity=0)
    out.append({"closure_O2": caught(lambda: o.step(lambda: None))})
    out.append({"unknown_key": caught(lambda: amp.load_state_dict({"scale": {"loss_scale": 1.0, "unskipped": 0}}))})
    return out


@_scenario("fp16")
def O2_types(amp):
    m = mlp(batchnorm=True)
    o = sgd(m)
    m, o = amp.initialize(m, o, opt_level="O2", verbosity=0)
    x, y = batch(0)
    prediction = m(x)
    loss = F.mse_loss(prediction, y)
    with amp.scale_loss(loss, o) as scaled:
        scaled.backward()
    out = [
        {
            "output": str(prediction.dtype),
            "scaled": str(scaled.dtype),
            "params": [str(p.dtype) for p in m.parameters()],
            "buffers": [str(b.dtype) for b in m.buffers()],
            "state_dict": [str(v.dtype) for v in m.state_dict().values()],
            "masters": [str(p.dtype) for p in amp.master_params(o)],
            "master_grads": [str(p.grad.dtype) for p in amp.master_params(o)],
            "model_grads": [str(p.grad.dtype) for p in m.parameters()],
        }
    ]
    o.step()
    o.zero_grad()
    out.append(
        {
            "master_grads": [p.grad is None or float(p.grad.abs().sum()) for p in amp.master_params(o)],
            "state": sorted(
                {str(v.dtype) for s in o.state.values() for v in s.values() if torch.is_tensor(v) and v.dim()}
            ),
        }
    )
    return out


@_scenario("fp16")
def cast_model_outputs(amp):
    out = []
    for level, dtype in (("O1", torch.float32), ("O2", torch.float16), ("O3", torch.float32), ("O0", torch.float16)):
        m = mlp()
        m, o = amp.initialize(m, sgd(m), opt_level=level, cast_model_outputs=dtype, verbosity=0)
        out.append({"level": level, "dtype": str(m(batch(0)[0]).dtype)})
    return out


@_scenario("fp16")
def O1_casts_off_for_a_while(amp):
    m = mlp()
    m, o = amp.initialize(m, sgd(m), opt_level="O1", verbosity=0)
    x, _ = batch(0)
    inside = []
    with amp.disable_casts():
        inside.append(str(m(x).dtype))
    inside.append(str(m(x).dtype))
    return [{"dtypes": inside}]


@_scenario("fp16")
def O1_new_group_after_initialize(amp):
    m = mlp()
    o = sgd(m)
    m, o = amp.initialize(m, o, opt_level="O1", verbosity=0)
    late = torch.nn.Parameter(torch.full((2,), 0.25))
    o.add_param_group({"params": [late], "lr": 0.5})
    out = []
    for i in range(3):
        x, y = batch(i)
        o.zero_grad()
        loss = F.mse_loss(m(x).float() + late, y)
        if i == 1:
            loss = poison(loss)
        with amp.scale_loss(loss, o) as scaled:
            scaled.backward()
        o.step()
        out.append({"scales": scales(amp), "params": tensors(m.parameters()), "late": tensors([late])})
    return out


@_scenario("fp16")
def O2_new_group_after_initialize(amp):
    m, extra = mlp(), fill(torch.nn.Linear(2, 2)).half()
    o = sgd(m)
    m, o = amp.initialize(m, o, opt_level="O2", verbosity=0)
    o.add_param_group({"params": list(extra.parameters()), "lr": 0.05})
    out = [{"masters": [str(p.dtype) for p in amp.master_params(o)]}]
    for i in range(3):
        x, y = batch(i)
        o.zero_grad()
        loss = F.mse_loss(extra(m(x).half()).float(), y)
        with amp.scale_loss(loss, o) as scaled:
            scaled.backward()
        o.step()
        out.append({"scales": scales(amp), "params": tensors(m.parameters()), "extra": tensors(extra.parameters())})
    return out


@_scenario("fp16")
def O1_unused_parameter(amp):
    m = mlp()
    spare = torch.nn.Parameter(torch.ones(3))
    o = torch.optim.SGD([*m.parameters(), spare], lr=0.1, weight_decay=0.01)
    m, o = amp.initialize(m, o, opt_level="O1", verbosity=0)
    return train(amp, m, o, 3) + [{"spare": tensors([spare]), "grad": grads([spare])}]


@_scenario("fp16")
def O1_scheduler_sees_the_optimizer(amp):
    m = mlp()
    o = sgd(m)
    m, o = amp.initialize(m, o, opt_level="O1", verbosity=0)
    schedule = torch.optim.lr_scheduler.StepLR(o, step_size=2, gamma=0.5)
    out = train(amp, m, o, 4, after=lambda i: schedule.step())
    return out + [{"lr": [g["lr"] for g in o.param_groups]}]


@_scenario("fp16")
def O2_resume_from_checkpoint(amp):
    m = mlp(batchnorm=True)
    o = adam(m)
    m, o = amp.initialize(m, o, opt_level="O2", verbosity=0)
    out = train(amp, m, o, 3)
    saved = copy.deepcopy((m.state_dict(), o.state_dict(), amp.state_dict()))
    m2 = mlp(batchnorm=True)
    o2 = adam(m2)
    m2, o2 = amp.initialize(m2, o2, opt_level="O2", verbosity=0)
    m2.load_state_dict(saved[0])
    o2.load_state_dict(saved[1])
    amp.load_state_dict(saved[2])
    return out + train(amp, m2, o2, 3, first=3)
