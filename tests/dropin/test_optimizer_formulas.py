"""The optimizers compute Apex's published formulas: 200 steps each, against transcriptions in float32."""

from __future__ import annotations

import inspect
import math

import pytest
import torch

from amp_migrate.apex import optimizers
from amp_migrate.apex.contrib import optimizers as contrib
from amp_migrate.apex.contrib.optimizers.fused_sgd import FusedSGD as ContribSGD
from amp_migrate.apex.optimizers import _fused_kernels

from . import optimizer_formulas as formulas
from .scenarios import wave

SHAPES = ((3, 4), (5,), (2, 3, 2), (1,))
STEPS = 200
#: relative: five units in the last place of float32; most cases are within two
TOLERANCE = 6e-7

ADAM = [
    {},
    {"weight_decay": 0.01},
    {"weight_decay": 0.1, "adam_w_mode": False},
    {"bias_correction": False, "lr": 1e-4, "weight_decay": 0.01},
    {"betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.3},
]
SGD = [
    {"lr": 0.01},
    {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01},
    {"lr": 0.01, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1},
    {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1, "wd_after_momentum": True},
    {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "wd_after_momentum": True},
    {"lr": 0.01, "weight_decay": 0.1, "wd_after_momentum": True},
]
ADAGRAD = [{}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "adagrad_w_mode": True}, {"eps": 0.1, "lr": 0.1}]
LAMB = [
    {},
    {"weight_decay": 0.0},
    {"weight_decay": 0.0, "use_nvlamb": True},
    {"adam_w_mode": False},
    {"grad_averaging": False},
    {"bias_correction": False, "lr": 1e-4},
    {"max_grad_norm": 0.1},
    {"max_grad_norm": 1e9, "betas": (0.5, 0.9)},
]
NOVOGRAD = [
    {},
    {"weight_decay": 0.1},
    {"weight_decay": 0.1, "reg_inside_moment": True},
    {"grad_averaging": False, "lr": 1e-4},
    {"norm_type": 0, "weight_decay": 0.1},
    {"norm_type": 0, "reg_inside_moment": True, "init_zero": True},
    {"init_zero": True},
    {"bias_correction": False, "betas": (0.95, 0.98)},
]
OLD_ADAM = [
    {},
    {"weight_decay": 0.01},
    {"eps_inside_sqrt": True, "weight_decay": 0.1},
    {"bias_correction": False, "lr": 1e-4},
    {"max_grad_norm": 0.5},
    {"use_mt": True, "amp_scale_adjustment": 2.0},
]


def cases(*tables):
    return [
        pytest.param(make, formula, settings, id=f"{make.__module__.split('.')[2]}-{make.__name__}-{settings}")
        for make, formula, table in tables
        for settings in table
    ]


CASES = cases(
    (optimizers.FusedAdam, formulas.adam, ADAM),
    (optimizers.FusedSGD, formulas.sgd, SGD),
    (optimizers.FusedAdagrad, formulas.adagrad, ADAGRAD),
    (optimizers.FusedLAMB, formulas.lamb, LAMB),
    (optimizers.FusedMixedPrecisionLamb, formulas.lamb, LAMB),
    (optimizers.FusedNovoGrad, formulas.novograd, NOVOGRAD),
    (contrib.FusedAdam, formulas.old_adam, OLD_ADAM),
    (contrib.FusedLAMB, formulas.lamb, [s for s in LAMB if "use_nvlamb" not in s]),
)


def start():
    return [torch.nn.Parameter(wave(*shape, phase=0.4 * i, gain=1.0)) for i, shape in enumerate(SHAPES)]


def gradient(i, t):
    drift = wave(*SHAPES[i], phase=2.0 * i)
    return drift + wave(*SHAPES[i], phase=0.37 * t * (i + 1) + i, gain=0.4 + 0.3 * math.sin(t))


def settings_of(make, given):
    """The constructor's defaults, with what was given."""
    defaults = {n: p.default for n, p in inspect.signature(make).parameters.items() if p.default is not p.empty}
    return {"use_nvlamb": False, **defaults, **given}


def transcribe(formula, groups, steps=STEPS, grad=gradient):
    """The parameters after ``steps`` steps of the formula; ``groups`` are pairs of settings and positions."""
    params = [p.detach().clone() for p in start()]
    states = [{} for _ in params]
    for t in range(1, steps + 1):
        grads = [grad(i, t) for i in range(len(params))]
        norm = math.sqrt(sum(float((g * g).sum()) for g in grads))
        for settings, at in groups:
            group = {**settings, "global_norm": norm}
            formula(group, [params[i] for i in at], [grads[i] for i in at], [states[i] for i in at], t)
    return params


def take_steps(optimizer, params, steps=STEPS, first=1):
    for t in range(first, first + steps):
        for i, p in enumerate(params):
            p.grad = gradient(i, t)
        optimizer.step()


def error(params, expected):
    """The largest difference, relative to the largest parameter where that is above one."""
    pairs = [(p.detach().double(), e.double()) for p, e in zip(params, expected)]
    return max(float((p - e).abs().max() / e.abs().max().clamp(min=1.0)) for p, e in pairs)


@pytest.mark.parametrize("make, formula, settings", CASES)
def test_200_steps_are_those_of_the_formula(make, formula, settings, record_property) -> None:
    params = start()
    take_steps(make(params, **settings), params)
    expected = transcribe(formula, [(settings_of(make, settings), range(len(SHAPES)))])
    assert error(expected, [p.detach().double() for p in start()]) > 0.005  # it went somewhere
    difference = error(params, expected)
    record_property("difference", difference)
    assert difference < TOLERANCE


@pytest.mark.parametrize(
    "make, formula, extra",
    [
        (optimizers.FusedAdam, formulas.adam, {"lr": 0.003}),
        (optimizers.FusedSGD, formulas.sgd, {"lr": 0.003, "momentum": 0.5}),
        (optimizers.FusedAdagrad, formulas.adagrad, {"lr": 0.003}),
        (optimizers.FusedLAMB, formulas.lamb, {"lr": 0.003}),
        (optimizers.FusedMixedPrecisionLamb, formulas.lamb, {"lr": torch.tensor(0.003)}),
        (optimizers.FusedNovoGrad, formulas.novograd, {"lr": 0.003, "norm_type": 0}),
        (contrib.FusedAdam, formulas.old_adam, {"lr": 0.003, "max_grad_norm": 0.1}),
    ],
)
def test_groups_have_their_own_settings(make, formula, extra) -> None:
    params = start()
    common = {"lr": 0.01}
    optimizer = make([{"params": params[:2], "weight_decay": 0.1}, {"params": params[2:], **extra}], **common)
    take_steps(optimizer, params, 20)
    first = settings_of(make, {**common, "weight_decay": 0.1})
    second = settings_of(make, {**common, **{k: float(v) if k == "lr" else v for k, v in extra.items()}})
    assert error(params, transcribe(formula, [(first, (0, 1)), (second, (2, 3))], 20)) < TOLERANCE


def test_LAMB_clips_by_the_norm_of_the_constructor() -> None:
    """Apex reads ``defaults``: a group's own max_grad_norm changes nothing."""
    params, others = start(), start()
    optimizer = optimizers.FusedLAMB(others)
    optimizer.param_groups[0]["max_grad_norm"] = 1e-3
    take_steps(optimizers.FusedLAMB(params), params, 3)
    take_steps(optimizer, others, 3)
    assert all(torch.equal(p, q) for p, q in zip(params, others))


def test_LAMB_leaves_the_direction_in_the_gradients() -> None:
    params = start()
    take_steps(optimizers.FusedLAMB(params, lr=0.0, weight_decay=0.0, max_grad_norm=1e9), params, 1)
    # the first step of Adam: the sign of the gradient
    assert torch.allclose(params[0].grad, gradient(0, 1).sign(), atol=1e-4)


@pytest.mark.parametrize("make", [optimizers.FusedAdam, optimizers.FusedAdagrad, optimizers.FusedNovoGrad])
def test_other_optimizers_leave_gradients_as_they_are(make) -> None:
    params = start()
    take_steps(make(params, weight_decay=0.1), params, 1)
    assert all(torch.equal(p.grad, gradient(i, 1)) for i, p in enumerate(params))


def test_zero_parameters_and_zero_directions_step_with_ratio_one() -> None:
    weight, still = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.ones(3))
    optimizer = optimizers.FusedLAMB([weight, still], lr=0.1, weight_decay=0.01, adam_w_mode=False)
    weight.grad, still.grad = torch.ones(3), torch.zeros(3) - 0.01  # decay and gradient cancel
    optimizer.step()
    assert torch.allclose(weight, torch.full((3,), -0.1), atol=1e-4)
    assert torch.isfinite(still).all()


def test_SGD_divides_by_the_most_recent_scale_once() -> None:
    params, others = start(), start()
    scaled, plain = optimizers.FusedSGD(params, lr=0.1), optimizers.FusedSGD(others, lr=0.1)
    for i, (p, q) in enumerate(zip(params, others)):
        p.grad, q.grad = gradient(i, 1) * 128, gradient(i, 1)
    scaled.most_recent_scale, scaled.scale_set_by_backward = 128.0, True
    scaled.step()
    plain.step()
    assert all(torch.equal(p, q) for p, q in zip(params, others))
    assert (scaled.most_recent_scale, scaled.scale_set_by_backward) == (1.0, False)


def test_a_late_gradient_starts_its_own_momentum() -> None:
    """As in torch.optim.SGD; Apex's kernel then restarted every momentum of the group."""
    params, others = start(), start()
    ours, theirs = (f(p, lr=0.1, momentum=0.9) for f, p in ((optimizers.FusedSGD, params), (torch.optim.SGD, others)))
    for t in range(3):
        for optimizer, mine in ((ours, params), (theirs, others)):
            for i, p in enumerate(mine):
                p.grad = None if i == 3 and t == 0 else gradient(i, t)
            optimizer.step()
    assert error(params, [q.detach().double() for q in others]) < 1e-6


@pytest.mark.parametrize("settings", SGD)
def test_contrib_SGD_takes_scaled_gradients_and_writes_outputs(settings) -> None:
    masters = [p.detach() for p in start()]
    outputs = [p.half() for p in masters]
    optimizer = ContribSGD(masters, **settings)
    for t in range(1, 21):
        grads = [gradient(i, t) * 128 for i in range(len(SHAPES))]
        optimizer.step(grads=grads, output_params=outputs, scale=128.0)
    group = settings_of(ContribSGD, settings)
    assert error(masters, transcribe(formulas.sgd, [(group, range(len(SHAPES)))], 20)) < TOLERANCE
    assert all(torch.equal(out, p.half()) for out, p in zip(outputs, masters))


def test_old_Adam_takes_scaled_gradients_and_their_norms() -> None:
    settings = {"max_grad_norm": 0.5, "weight_decay": 0.01}
    masters, given = [p.detach() for p in start()], [p.detach() for p in start()]
    outputs = [p.half() for p in masters]
    optimizer, finds_norms = contrib.FusedAdam(masters, **settings), contrib.FusedAdam(given, **settings)
    for t in range(1, 21):
        grads = [gradient(i, t) * 128 for i in range(len(SHAPES))]
        norm = torch.cat([g.reshape(-1) for g in grads]).norm()
        optimizer.step(grads=[grads], output_params=[outputs], scale=128.0, grad_norms=[norm])
        finds_norms.step(grads=(g for g in grads), scale=128.0)
    group = settings_of(contrib.FusedAdam, settings)
    expected = transcribe(formulas.old_adam, [(group, range(len(SHAPES)))], 20)
    assert error(masters, expected) < TOLERANCE
    assert error(given, expected) < TOLERANCE
    assert all(torch.equal(out, p.half()) for out, p in zip(outputs, masters))


@pytest.mark.skipif(not hasattr(torch, "_fused_sgd_"), reason="a CPU has no fused kernels in this torch")
@pytest.mark.parametrize(
    "make, formula, settings",
    cases(
        (optimizers.FusedAdam, formulas.adam, [s for s in ADAM if "bias_correction" not in s]),
        (optimizers.FusedSGD, formulas.sgd, [s for s in SGD if "wd_after_momentum" not in s]),
    ),
)
def test_one_kernel_computes_the_same(make, formula, settings, monkeypatch) -> None:
    """What runs on a GPU, on the CPU's kernels, which round the decay once more: 2e-5 as measured in APEX_API."""
    monkeypatch.setattr(_fused_kernels, "FUSED_DEVICE_TYPES", {"cpu"})
    used = []
    monkeypatch.setattr(_fused_kernels, "kernel_for", _noting(used, _fused_kernels.kernel_for))
    params = start()
    take_steps(make(params, **settings), params)
    assert used and all(used)
    assert error(params, transcribe(formula, [(settings_of(make, settings), range(len(SHAPES)))])) < 3e-5


def _noting(used, function):
    def noted(*args):
        kernel = function(*args)
        used.append(kernel is not None)
        return kernel

    return noted


def test_the_kernel_is_left_alone_where_it_computes_something_else(monkeypatch) -> None:
    monkeypatch.setattr(_fused_kernels, "FUSED_DEVICE_TYPES", {"cpu"})
    plain, half = [torch.zeros(2)], [torch.zeros(2, dtype=torch.float16)]
    group = {"bias_correction": False, "lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0, "step": 1}
    assert _fused_kernels.kernel_for("adamw", half, half) is None
    assert _fused_kernels.kernel_for("adamw", [torch.zeros(2, 3)], [torch.zeros(3, 2).t()]) is None
    assert not _fused_kernels.adam_in_one_kernel(plain, plain, plain, plain, group, True)
