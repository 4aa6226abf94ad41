"""Further behaviour of Apex amp, in the style of ``scenarios.py``: the corners that the first recordings leave out."""

from __future__ import annotations

import contextlib
import copy
import io
import types

import torch
import torch.nn.functional as F

from .scenarios import adam, batch, caught, fill, grads, mlp, poison, scales, sgd, tensors, train, wave

SCENARIOS = {}


def scenario(compute):
    def mark(function):
        function.compute = compute
        SCENARIOS[function.__name__] = function
        return function

    return mark


def _with_arguments(function, arguments):
    return lambda amp: function(amp, *arguments)


def family(compute, **variants):
    """Register ``function(amp, *arguments)`` once for each variant."""

    def mark(function):
        for suffix, arguments in variants.items():
            name = f"{function.__name__}__{suffix}"
            run = _with_arguments(function, arguments)
            run.__name__, run.compute = name, compute
            SCENARIOS[name] = run
        return function

    return mark


@contextlib.contextmanager
def overheard(lines):
    """Collect what is printed about overflows."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        yield
    lines += [line for line in out.getvalue().splitlines() if line.startswith("Gradient overflow")]


def backward(amp, model, optimizers, i, *, bad=False, weight=1.0, **kw):
    """One micro-batch; ``bad`` poisons the loss."""
    x, y = batch(i)
    loss = F.mse_loss(model(x).float(), y) * weight
    if bad:
        loss = poison(loss, bad if isinstance(bad, float) and bad != 1.0 else float("inf"))
    with amp.scale_loss(loss, optimizers, **kw) as scaled:
        scaled.backward()


def seen(amp, model, **more):
    return {"scales": scales(amp), "params": tensors(model.parameters()), **more}


def master_grads(amp, optimizer):
    return grads(list(amp.master_params(optimizer)))


# ---------------------------------------------------------------------------------- what is printed


@family("fp16", O1=("O1",), O2=("O2",))
def overflow_messages(amp, level):
    model, lines = mlp(), []
    optimizer = sgd(model)
    with overheard(lines):
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=1)
        train(amp, model, optimizer, 5, bad=(1, 2, 4))
    return [{"lines": lines}]


@scenario("fp16")
def O1_overflow_messages_name_the_first_loss(amp):
    model, lines = mlp(), []
    optimizer = sgd(model)
    with overheard(lines):
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1", num_losses=3, verbosity=1)
        for bad in ((1,), (2, 1), (0, 1, 2), ()):
            optimizer.zero_grad()
            for loss_id in (2, 1, 0):
                backward(amp, model, optimizer, loss_id, bad=loss_id in bad, loss_id=loss_id)
            optimizer.step()
        optimizer.zero_grad()
        for loss_id, overflow in ((1, False), (0, True), (1, True), (2, True)):
            backward(amp, model, optimizer, loss_id, bad=overflow, loss_id=loss_id)
        optimizer.step()
    return [{"lines": lines}, seen(amp, model)]


@scenario("fp16")
def O1_overflow_message_has_the_scale_at_the_step(amp):
    """Two overflows before the step: the message is printed at the step, with the scale of that moment."""
    model, lines = mlp(), []
    optimizer = sgd(model)
    with overheard(lines):
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=1)
        backward(amp, model, optimizer, 0, bad=True)
        backward(amp, model, optimizer, 1, bad=True)
        optimizer.step()
        optimizer.zero_grad()
        backward(amp, model, optimizer, 2)
        optimizer.step()
    return [{"lines": lines}, seen(amp, model)]


@scenario("fp16")
def O1_two_optimizers_each_print(amp):
    left, right, lines = mlp(), mlp(), []
    with overheard(lines):
        (left, right), (a, b) = amp.initialize([left, right], [sgd(left), adam(right)], opt_level="O1", verbosity=1)
        for i in range(3):
            a.zero_grad()
            b.zero_grad()
            x, y = batch(i)
            loss = F.mse_loss(left(x).float(), y) + F.mse_loss(right(x).float(), y)
            with amp.scale_loss(poison(loss) if i == 1 else loss, [a, b]) as scaled:
                scaled.backward()
            b.step()
            a.step()
    return [{"lines": lines}, seen(amp, left, right=tensors(right.parameters()))]


# ---------------------------------------------------------------------------------- a pending skip


@family("fp16", O0=("O0",), O1=("O1",), O2=("O2",), O3=("O3",))
def overflow_then_zero_grad_without_step(amp, level):
    """The skip stays pending: it hits the next step, whichever backward that belongs to."""
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale="dynamic", verbosity=0)
    out = []
    for i in range(5):
        optimizer.zero_grad()
        backward(amp, model, optimizer, i, bad=i == 1)
        if i != 1:
            optimizer.step()
        out.append(seen(amp, model))
    return out


@family("fp16", O1=("O1",), O2=("O2",))
def three_overflows_before_one_step(amp, level):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    out = []
    for i in range(3):
        optimizer.zero_grad()
        for j in range(3):
            backward(amp, model, optimizer, 3 * i + j, bad=i == 1)
            out.append({"scales": scales(amp)})
        optimizer.step()
        out.append(seen(amp, model))
    return out


@family("fp16", O1=("O1",), O2=("O2",), O3=("O3",))
def step_twice_after_an_overflow(amp, level):
    """Only one step is skipped; the one after it finds zeroed gradients, and momentum moves the weights."""
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale="dynamic", verbosity=0)
    out = train(amp, model, optimizer, 2, bad=(1,))
    optimizer.zero_grad()
    for _ in range(2):
        backward(amp, model, optimizer, 5)
        optimizer.step()
        out.append(seen(amp, model))
    return out


@scenario("fp16")
def O1_overflow_in_one_of_two_optimizers_blocks(amp):
    """Each optimizer has its own block: only the one whose block overflowed is skipped, but the scale is shared."""
    left, right = mlp(), mlp()
    (left, right), (a, b) = amp.initialize([left, right], [sgd(left), adam(right)], opt_level="O1", verbosity=0)
    out = []
    for i in range(4):
        a.zero_grad()
        b.zero_grad()
        backward(amp, left, a, i, bad=i == 1)
        backward(amp, right, b, i + 1, bad=i == 2)
        a.step()
        b.step()
        out.append(seen(amp, left, right=tensors(right.parameters())))
    return out


@family("fp16", O1=("O1",), O2=("O2",))
def overflow_in_each_of_three_losses(amp, level):
    model = mlp()
    optimizer = adam(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, num_losses=3, verbosity=0)
    out = []
    for i in range(5):
        optimizer.zero_grad()
        for j in range(3):
            backward(amp, model, optimizer, 3 * i + j, bad=i - 1 == j, loss_id=j)
        optimizer.step()
        out.append(seen(amp, model))
    return out


@scenario("fp16")
def O1_closure_while_a_skip_is_pending(amp):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    backward(amp, model, optimizer, 0, bad=True)
    out = [{"closure": caught(lambda: optimizer.step(lambda: None))}]
    optimizer.step()
    out.append(seen(amp, model))
    optimizer.zero_grad()
    backward(amp, model, optimizer, 1)
    optimizer.step()
    return [*out, seen(amp, model)]


@family("fp16", O1=("O1", None), O1_128=("O1", 128.0), O2=("O2", None), O2_8=("O2", 8.0), O3=("O3", "dynamic"))
def what_step_returns(amp, level, scale):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale=scale, verbosity=0)
    optimizer.zero_grad()
    backward(amp, model, optimizer, 0, bad=True)
    first = optimizer.step()
    return [{"returned": [first is None, optimizer.step() is None]}]


# ---------------------------------------------------------------------------------- delay_unscale


def calm(amp):
    """A scale at which nothing overflows by itself: after an overflow Apex's fallback leaves undefined gradients."""
    for scaler in amp._amp_state.loss_scalers:
        if scaler.dynamic:
            scaler._loss_scale = 1024.0


def _delayed(amp, level, bad, parts=3, steps=3, pattern=(True, True, False), scale=None, bn=False):
    model = mlp(bn)
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale=scale, verbosity=0)
    calm(amp)
    out = []
    for i in range(steps):
        optimizer.zero_grad()
        for j in range(parts):
            overflow = (i, j) == bad
            backward(amp, model, optimizer, parts * i + j, bad=overflow, weight=0.5, delay_unscale=pattern[j])
            out.append({"scales": scales(amp)})
        if i != bad[0]:
            out.append({"grads": master_grads(amp, optimizer)})
        optimizer.step()
        out.append(seen(amp, model))
    return out


@family(
    "fp16",
    **{f"{lv}_{j}": (lv, j) for lv in ("O1", "O2") for j in range(3)},
)
def delayed_overflow_in_part(amp, level, j):
    return _delayed(amp, level, (1, j))


@family("fp16", O1=("O1",), O2=("O2",))
def delayed_in_the_middle_only(amp, level):
    return _delayed(amp, level, (-1, 0), pattern=(False, True, False))


@family("fp16", O1=("O1",), O2=("O2",))
def delayed_in_the_middle_overflow(amp, level):
    return _delayed(amp, level, (1, 1), pattern=(False, True, False))


@family("fp16", O1=("O1",), O2=("O2",), O3=("O3",))
def delayed_with_static_scale(amp, level):
    return _delayed(amp, level, (-1, 0), scale=64.0)


@scenario("fp16")
def O2_delayed_with_batchnorm(amp):
    return _delayed(amp, "O2", (1, 1), bn=True)


@scenario("fp32")
def O0_delay_unscale_at_scale_one(amp):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O0", verbosity=0)
    out = []
    for i in range(2):
        optimizer.zero_grad()
        backward(amp, model, optimizer, i, delay_unscale=True)
        backward(amp, model, optimizer, i + 3)
        out.append({"grads": grads(model.parameters())})
        optimizer.step()
        out.append(seen(amp, model))
    return out


@scenario("fp16")
def O1_delay_unscale_with_two_losses_and_optimizers(amp):
    left, right = mlp(), mlp()
    (left, right), (a, b) = amp.initialize(
        [left, right], [sgd(left), sgd(right)], opt_level="O1", num_losses=2, verbosity=0
    )
    out = []
    for i in range(4):
        a.zero_grad()
        b.zero_grad()
        backward(amp, left, [a], i, delay_unscale=True, loss_id=0)
        backward(amp, right, b, i, bad=i == 1, loss_id=1)
        x, y = batch(i + 5)
        loss = F.mse_loss(left(x).float(), y) + F.mse_loss(right(x).float(), y)
        with amp.scale_loss(poison(loss) if i == 2 else loss, [a, b], loss_id=0) as scaled:
            scaled.backward()
        a.step()
        b.step()
        out.append(seen(amp, left, right=tensors(right.parameters())))
    return out


@family("fp16", O1=("O1",), O2=("O2",))
def delay_overflow_check(amp, level):
    """The scale is left to the program; gradients are unscaled, the overflow is remembered on the scaler."""
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    out = []
    for i in range(3):
        optimizer.zero_grad()
        backward(amp, model, optimizer, i, bad=i == 1, delay_overflow_check=True)
        skip = amp._amp_state.loss_scalers[0].update_scale()
        out.append({"skip": bool(skip), "scales": scales(amp)})
        if not skip:
            optimizer.step()
        out.append({"params": tensors(model.parameters())})
    return out


# ---------------------------------------------------------------------------------- the scale


@family("fp16", O1=("O1", ()), O2=("O2", ()), O1_overflow=("O1", (4, 5)), O2_overflow=("O2", (7,)))
def window_of_three(amp, level, bad):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    amp._amp_state.loss_scalers[0]._scale_seq_len = 3
    amp._amp_state.loss_scalers[0]._loss_scale = 256.0
    return [{"scales": r["scales"], "params": r["params"]} for r in train(amp, model, optimizer, 10, bad=bad)]


@scenario("fp16")
def O1_window_changed_in_the_middle(amp):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    scaler = amp._amp_state.loss_scalers[0]
    scaler._loss_scale = 64.0
    out = train(amp, model, optimizer, 4)
    scaler._scale_seq_len = 3  # passed already: never equal again
    out += train(amp, model, optimizer, 3, first=4)
    scaler._unskipped = 2
    out += train(amp, model, optimizer, 4, first=7)
    return out


@family(
    "fp16",
    both=(2.0**14, 2.0**17, (0, 1, 2), None), floor_above=(2.0**20, 2.0**24, (1,), None),
    ceiling_below=(None, 2.0**10, (1,), None), floor_over_ceiling=(2.0**12, 2.0**10, (1,), None),
    odd=(3000.0, 100000.0, (0, 1, 2, 3, 4), None), static=(2.0**14, 2.0**10, (1,), 512.0),
    zero_floor=(0.0, 2.0**24, (0, 1), None),
)  # fmt: skip
def scale_bounds(amp, low, high, bad, scale):
    model = mlp()
    optimizer = sgd(model, lr=0.001)
    model, optimizer = amp.initialize(
        model, optimizer, opt_level="O1", loss_scale=scale, min_loss_scale=low, max_loss_scale=high, verbosity=0
    )
    amp._amp_state.loss_scalers[0]._scale_seq_len = 3
    if scale:  # a static scale applies infinities: there is nothing to compare in the weights
        return [{"scales": r["scales"]} for r in train(amp, model, optimizer, 5)]
    return train(amp, model, optimizer, 10, bad=bad)


@family("fp16", O0=("O0",), O1=("O1",), O2=("O2",), O3=("O3",))
def two_optimizers_overflow_at_the_floor(amp, level):
    left, right = mlp(), mlp()
    (left, right), (a, b) = amp.initialize(
        [left, right], [sgd(left), sgd(right)], opt_level=level, loss_scale="dynamic", min_loss_scale=512.0, verbosity=0
    )
    calm(amp)
    out = []
    for i in range(5):
        a.zero_grad()
        b.zero_grad()
        x, y = batch(i)
        one, two = F.mse_loss(left(x).float(), y), F.mse_loss(right(x).float(), y)
        loss = poison(one) + poison(two) if i in (1, 2, 3) else one + two
        with amp.scale_loss(loss, [a, b]) as scaled:
            scaled.backward()
        a.step()
        b.step()
        out.append(seen(amp, left, right=tensors(right.parameters())))
    return out


@scenario("fp16")
def O1_loaded_scale_above_the_ceiling(amp):
    model = mlp()
    optimizer = sgd(model, lr=0.001)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", max_loss_scale=2.0**10, verbosity=0)
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 2.0**12, "unskipped": 1997}})
    return train(amp, model, optimizer, 6, bad=(4,))


@scenario("fp16")
def O1_loaded_counter_beyond_the_window(amp):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 512.0, "unskipped": 2000}})
    out = train(amp, model, optimizer, 3)
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 512.0, "unskipped": 1999}})
    return out + train(amp, model, optimizer, 3, bad=(3,), first=3)


@scenario("fp16")
def O1_overflow_at_the_end_of_the_window(amp):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 512.0, "unskipped": 1998}})
    return train(amp, model, optimizer, 4, bad=(1,))


@family("fp16", more=(3, 1), fewer=(1, 3))
def state_dict_with_other_num_losses(amp, saved, loaded):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", num_losses=saved, verbosity=0)
    for k in range(saved):
        for _ in range(k + 1):
            backward(amp, model, optimizer, k, bad=k == 2, loss_id=k)
    state = copy.deepcopy(amp.state_dict())
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", num_losses=loaded, verbosity=0)
    with contextlib.redirect_stdout(io.StringIO()) as text:
        amp.load_state_dict(state)
    return [{"lines": text.getvalue().splitlines()}, *train(amp, model, optimizer, 2)]


@scenario("fp16")
def state_dict_forms(amp):
    model = mlp()
    amp.initialize(model, sgd(model), opt_level="O1", num_losses=2, loss_scale="4", verbosity=0)
    own = {"mine": 1}
    state = amp.state_dict(own)
    return [
        {"keys": list(state), "same": state is own},
        {"types": [type(v).__name__ for v in state["loss_scaler1"].values()], "order": list(state["loss_scaler0"])},
        {"default": type(amp.state_dict()).__name__},
    ]


@scenario("fp16")
def loss_scale_written_into_a_static_scaler(amp):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", loss_scale=16.0, verbosity=0)
    out = train(amp, model, optimizer, 2)
    amp._amp_state.loss_scalers[0]._loss_scale = 1024.0
    loss = torch.tensor(2.0, requires_grad=True)
    with amp.scale_loss(loss, optimizer) as scaled:
        out.append({"scaled": scaled.item()})
        scaled.backward()
    return out + train(amp, model, optimizer, 2, first=2)


@scenario("fp16")
def static_scale_loaded_from_a_dynamic_state(amp):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", loss_scale=16.0, verbosity=0)
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 2048.0, "unskipped": 1999}})
    return train(amp, model, optimizer, 3)


@family("fp16", O1=("O1", 128.0), O2=("O2", 128.0), O2_odd=("O2", 100.0), O3=("O3", 8.0), O0=("O0", 3.0))
def static_scale_accumulation(amp, level, scale):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale=scale, verbosity=0)
    out = []
    for i in range(3):
        optimizer.zero_grad()
        for j in range(3):
            backward(amp, model, optimizer, 3 * i + j, weight=0.3)
        out.append({"grads": master_grads(amp, optimizer)})
        optimizer.step()
        out.append(seen(amp, model))
    return out


@scenario("fp16")
def O2_static_one_accumulates_in_masters(amp):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", loss_scale=1.0, verbosity=0)
    out = []
    for i in range(3):
        optimizer.zero_grad()
        for j in range(2):
            backward(amp, model, optimizer, 2 * i + j)
        out.append({"grads": master_grads(amp, optimizer)})
        optimizer.step()
        out.append(seen(amp, model))
    return out


# ---------------------------------------------------------------------------------- O2 and O3


@scenario("fp16")
def O2_frozen_parameters(amp):
    model = mlp(batchnorm=True)
    model[0].weight.requires_grad_(False)
    model[1].bias.requires_grad_(False)
    optimizer = adam(model, weight_decay=0.01)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    out = train(amp, model, optimizer, 4, bad=(1,))
    out.append({"dtypes": [str(p.dtype) for p in amp.master_params(optimizer)]})
    out.append({"frozen": [p.requires_grad for p in amp.master_params(optimizer)]})
    return out


@family("fp16", half=(True,), full=(False,))
def O2_new_group_after_steps(amp, half):
    model, extra = mlp(), fill(torch.nn.Linear(2, 2))
    if half:
        extra.half()
    optimizer = adam(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    out = train(amp, model, optimizer, 2)
    optimizer.add_param_group({"params": extra.parameters(), "lr": 0.05})
    out.append({"groups": [[str(p.dtype) for p in g["params"]] for g in optimizer.param_groups]})
    for i in range(4):
        x, y = batch(i)
        optimizer.zero_grad()
        hidden = model(x)
        loss = F.mse_loss(extra(hidden.half() if half else hidden).float(), y)
        if i == 2:
            loss = poison(loss)
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        out.append(seen(amp, model, extra=tensors(extra.parameters())))
    return out


@family("fp16", O1=("O1",), O2=("O2",), O3=("O3",))
def several_groups(amp, level):
    model = mlp(batchnorm=True)
    groups = [
        {"params": list(model[0].parameters()), "lr": 0.05},
        {"params": list(model[3].parameters()), "weight_decay": 0.1},
        {"params": list(model[1].parameters()), "momentum": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale="dynamic", verbosity=0)
    out = train(amp, model, optimizer, 4, bad=(2,), clip=0.1)
    return [*out, {"order": [list(p.shape) for p in amp.master_params(optimizer)]}]


@family("fp16", adam=(adam,), sgd=(sgd,), amsgrad=(lambda m: adam(m, amsgrad=True),))
def O2_optimizer_with_history(amp, make):
    """Trained before ``initialize``: the state moves over to the masters."""
    model = mlp(batchnorm=True)
    optimizer = make(model)
    for i in range(2):
        x, y = batch(i)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    out = train(amp, model, optimizer, 3, first=2)
    kinds = sorted({f"{k} {v.dtype}" for s in optimizer.state.values() for k, v in s.items() if torch.is_tensor(v)})
    return [*out, {"state": kinds, "entries": len(optimizer.state)}]


@family("fp16", O1=("O1",), O3=("O3",))
def optimizer_with_history(amp, level):
    model = mlp()
    optimizer = adam(model)
    for i in range(2):
        x, y = batch(i)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale=64.0, verbosity=0)
    out = train(amp, model, optimizer, 3, first=2)
    kinds = sorted({f"{k} {v.dtype}" for s in optimizer.state.values() for k, v in s.items() if torch.is_tensor(v)})
    return [*out, {"state": kinds}]


@scenario("fp16")
def O2_optimizer_state_loaded_before_the_masters_exist(amp):
    donor = mlp()
    saved = adam(donor)
    for i in range(3):
        x, y = batch(i)
        saved.zero_grad()
        F.mse_loss(donor(x), y).backward()
        saved.step()
    model = mlp()
    optimizer = adam(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    optimizer.load_state_dict(saved.state_dict())
    model.load_state_dict(donor.state_dict())
    return train(amp, model, optimizer, 3, first=3)


@scenario("fp16")
def O2_gradients_from_before_initialize(amp):
    model = mlp()
    optimizer = sgd(model)
    x, y = batch(0)
    F.mse_loss(model(x), y).backward()
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    backward(amp, model, optimizer, 1)
    out = [{"grads": master_grads(amp, optimizer)}]
    optimizer.step()
    return [*out, seen(amp, model)]


@scenario("fp16")
def O1_gradients_from_before_initialize(amp):
    model = mlp()
    optimizer = sgd(model)
    x, y = batch(0)
    F.mse_loss(model(x), y).backward()
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    backward(amp, model, optimizer, 1)
    out = [{"grads": grads(model.parameters())}]
    optimizer.step()
    return [*out, seen(amp, model)]


@scenario("fp16")
def O2_adam_weight_decay_clip(amp):
    model = mlp(batchnorm=True)
    optimizer = adam(model, weight_decay=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    return train(amp, model, optimizer, 6, bad=(0, 3), clip=0.02)


@family(
    "fp16",
    **{
        f"{lv}_{str(kb).lower()}{'_text' if isinstance(kb, str) else ''}": (lv, kb)
        for lv in ("O2", "O3") for kb in (True, False, "True", "False")
    },
    O0_true=("O0", True),
)  # fmt: skip
def keep_batchnorm(amp, level, keep):
    model = mlp(batchnorm=True)
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, keep_batchnorm_fp32=keep, verbosity=0)
    out = [{"dtypes": [str(t.dtype) for t in (*model.parameters(), *model.buffers())]}]
    return out + train(amp, model, optimizer, 3)


@scenario("fp16")
def O2_batchnorm_without_weights(amp):
    model = fill(
        torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8, affine=False), torch.nn.Linear(8, 2))
    )
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    return [{"dtypes": [str(t.dtype) for t in (*model.parameters(), *model.buffers())]}]


@family("fp16", sgd=(sgd,), adam=(adam,))
def O3_dynamic_overflow(amp, make):
    model = mlp()
    optimizer = make(model) if make is sgd else torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-3)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O3", loss_scale="dynamic", verbosity=0)
    out = train(amp, model, optimizer, 5, bad=(1, 2))
    return [*out, {"grads": [str(p.grad.dtype) for p in model.parameters()]}]


@family(
    "fp16",
    O3_masters=("O3", {"master_weights": True}), O2_no_masters=("O2", {"master_weights": False}),
    O0_masters=("O0", {"master_weights": True}), O0_half=("O0", {"cast_model_type": torch.float16}),
    O2_float=("O2", {"cast_model_type": torch.float32}), O2_no_cast=("O2", {"cast_model_type": False}),
    O1_no_patches=("O1", {"patch_torch_functions": False}), O1_float=("O1", {"cast_model_type": torch.float32}),
    O0_dynamic_masters=("O0", {"master_weights": True, "loss_scale": "dynamic"}),
    O1_no_cast=("O1", {"cast_model_type": False}),
    O3_bn_masters=("O3", {"master_weights": True, "keep_batchnorm_fp32": True}),
)  # fmt: skip
def overridden(amp, level, options):
    model = mlp(batchnorm="keep_batchnorm_fp32" in options)
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, **options)
    out = train(amp, model, optimizer, 4, bad=(2,) if options.get("loss_scale", level in ("O1", "O2")) else ())
    properties = amp._amp_state.opt_properties
    out.append({"options": {k: str(v) for k, v in properties.options.items()}})
    out.append({"dtypes": [str(p.dtype) for p in (*model.parameters(), *amp.master_params(optimizer))]})
    return out


@scenario("fp16")
def O2_model_zero_grad(amp):
    """``model.zero_grad()`` reaches the model's gradients, not the masters'; the step drops those."""
    model = mlp(batchnorm=True)
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    out = []
    for i in range(4):
        model.zero_grad()
        backward(amp, model, optimizer, i, bad=i == 1)
        optimizer.step()
        out.append(seen(amp, model))
    return out


@scenario("fp16")
def O2_without_any_zero_grad(amp):
    """fp16 gradients are dropped at each backward and masters' at each step; fp32 ones accumulate."""
    model = mlp(batchnorm=True)
    optimizer = sgd(model, lr=0.02)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    calm(amp)
    out = []
    for i in range(3):
        backward(amp, model, optimizer, i)
        out.append({"grads": master_grads(amp, optimizer)})
        optimizer.step()
        out.append(seen(amp, model))
    return out


@scenario("fp16")
def O1_without_any_zero_grad(amp):
    model = mlp()
    optimizer = sgd(model, lr=0.02)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    out = []
    for i in range(3):
        backward(amp, model, optimizer, i)
        out.append({"grads": grads(model.parameters())})
        optimizer.step()
        out.append(seen(amp, model))
    return out


@family("fp16", O1=("O1",), O2=("O2",))
def zeroed_gradients_between_blocks(amp, level):
    """zero_grad, then a block that reaches only part of the parameters."""
    left, right = mlp(), mlp()
    optimizer = torch.optim.SGD([*left.parameters(), *right.parameters()], lr=0.1, momentum=0.9, weight_decay=0.01)
    (left, right), optimizer = amp.initialize([left, right], optimizer, opt_level=level, verbosity=0)
    out = []
    for i in range(4):
        optimizer.zero_grad()
        backward(amp, left if i % 2 else right, optimizer, i)
        out.append({"grads": [None if g is None or not any(g) else g for g in master_grads(amp, optimizer)]})
        optimizer.step()
        out.append(seen(amp, left, right=tensors(right.parameters())))
    return out


@scenario("fp16")
def O1_zero_grad_forms(amp):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    out = []
    for i, to_none in enumerate((True, False, True, False)):
        optimizer.zero_grad(set_to_none=to_none)
        out.append({"none": [p.grad is None for p in model.parameters()]})
        backward(amp, model, optimizer, i)
        optimizer.step()
        out.append(seen(amp, model))
    return out


@scenario("fp16")
def O2_step_before_backward(amp):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    optimizer.zero_grad()
    optimizer.step()
    return [seen(amp, model), *train(amp, model, optimizer, 2)]


@scenario("fp16")
def O1_step_before_backward(amp):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    optimizer.step()
    optimizer.zero_grad()
    return [seen(amp, model), *train(amp, model, optimizer, 2)]


@family("fp16", O0=("O0",), O2=("O2",))
def plain_backward_between_blocks(amp, level):
    model = mlp()  # at O1, Apex computed such a forward with stale float16 weights
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    out = []
    for i in range(3):
        optimizer.zero_grad()
        if i != 1:
            backward(amp, model, optimizer, i)
        x, y = batch(i + 3)
        F.mse_loss(model(x).float(), y).backward()
        optimizer.step()
        out.append(seen(amp, model))
    return out


@family("fp16", O1=("O1",), O2=("O2",))
def optimizer_without_gradients(amp, level):
    left, right = mlp(), mlp()
    (left, right), (a, b) = amp.initialize([left, right], [sgd(left), sgd(right)], opt_level=level, verbosity=0)
    out = []
    for i in range(4):
        a.zero_grad()
        b.zero_grad()
        backward(amp, left, [b, a], i, bad=i == 2)
        a.step()
        b.step()
        out.append(seen(amp, left, right=tensors(right.parameters())))
    return out


@family("fp16", O0=("O0",), O1=("O1",), O2=("O2",))
def loss_that_reaches_nothing(amp, level):
    """No gradient at all: counted as a good backward."""
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale="dynamic", verbosity=0)
    other = torch.ones(3, requires_grad=True)
    out = []
    for i in range(3):
        with amp.scale_loss(other.sum() * (float("inf") if i == 1 else 1.0), optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        out.append(seen(amp, model))
    return out


@family("fp16", O1=("O1",), O2=("O2",), O0=("O0",))
def block_without_backward(amp, level):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    out = train(amp, model, optimizer, 1)
    optimizer.zero_grad()
    backward(amp, model, optimizer, 1)
    with amp.scale_loss(torch.ones(()), optimizer):
        pass
    out.append({"scales": scales(amp), "grads": master_grads(amp, optimizer)})
    optimizer.step()
    return [*out, seen(amp, model)]


@family("fp16", O1=("O1",), O2=("O2",))
def nested_blocks(amp, level):
    """Both backwards run in the inner block: gradients are unscaled by both."""
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, num_losses=2, loss_scale=4.0, verbosity=0)
    out = []
    for i in range(2):
        optimizer.zero_grad()
        x, y = batch(i)
        first, second = F.mse_loss(model(x).float(), y), F.l1_loss(model(x).float(), y)
        inner = amp.scale_loss(second, optimizer, loss_id=1)
        with amp.scale_loss(first, optimizer, loss_id=0) as a, inner as b:
            (a + b).backward()
        out.append({"grads": master_grads(amp, optimizer)})
        optimizer.step()
        out.append(seen(amp, model))
    return out


@family("fp16", O1=("O1",), O2=("O2",))
def parameters_shared_by_two_optimizers(amp, level):
    model = mlp()
    a, b = sgd(model), sgd(model, lr=0.05)
    model, (a, b) = amp.initialize(model, [a, b], opt_level=level, verbosity=0)
    out = []
    for i in range(4):
        for optimizer in (a, b):
            optimizer.zero_grad()
            backward(amp, model, optimizer, i, bad=i == 1 and optimizer is b)
            optimizer.step()
            out.append(seen(amp, model))
    return out


# ---------------------------------------------------------------------------------- gradients in and after the block


@family("fp16", O1=("O1",), O2=("O2",))
def gradients_changed_after_the_block(amp, level):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    out = []
    for i in range(3):
        optimizer.zero_grad()
        for j in range(2):
            backward(amp, model, optimizer, 2 * i + j)
            for p in amp.master_params(optimizer):
                p.grad.mul_(0.25).add_(0.01)
        out.append({"grads": master_grads(amp, optimizer)})
        optimizer.step()
        out.append(seen(amp, model))
    return out


@family("fp16", O1=("O1",), O2=("O2",))
def gradient_dropped_after_the_block(amp, level):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    out = []
    for i in range(3):
        optimizer.zero_grad()
        backward(amp, model, optimizer, i)
        list(amp.master_params(optimizer))[i].grad = None
        optimizer.step()
        out.append(seen(amp, model))
        optimizer.zero_grad()
        backward(amp, model, optimizer, i + 7)
        list(amp.master_params(optimizer))[i].grad = torch.full_like(list(amp.master_params(optimizer))[i], 0.125)
        backward(amp, model, optimizer, i + 9)
        optimizer.step()
        out.append(seen(amp, model))
    return out


@family("fp16", O1=("O1",), O2=("O2",), O3=("O3",))
def gradients_changed_inside_the_block(amp, level):
    model = mlp(batchnorm=level == "O2")
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale=64.0, verbosity=0)
    out = []
    for i in range(3):
        optimizer.zero_grad()
        for j in range(2):
            x, y = batch(2 * i + j)
            loss = F.mse_loss(model(x).float(), y)
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
                parameters = list(model.parameters())
                parameters[0].grad.clamp_(-0.5, 0.5)
                parameters[1].grad = None
                parameters[2].grad.zero_()
        out.append({"grads": [None if g is None or not any(g) else g for g in master_grads(amp, optimizer)]})
        optimizer.step()
        out.append(seen(amp, model))
    return out


@family("fp16", inf=(float("inf"),), minus=(float("-inf"),), nan=(float("nan"),))
def infinity_written_into_a_gradient(amp, value):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    out = []
    for i in range(4):
        optimizer.zero_grad()
        x, y = batch(i)
        with amp.scale_loss(F.mse_loss(model(x).float(), y), optimizer) as scaled:
            scaled.backward()
            if i == 1:
                next(model.parameters()).grad[0, 0] = value
        if i == 2:
            next(model.parameters()).grad.clamp_(-1e-3, 1e-3)
        optimizer.step()
        out.append(seen(amp, model))
    return out


@scenario("fp16")
def O1_two_backwards_in_one_block(amp):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    out = []
    for i in range(2):
        optimizer.zero_grad()
        x, y = batch(i)
        with amp.scale_loss(F.mse_loss(model(x).float(), y), optimizer) as scaled:
            scaled.backward(retain_graph=True)
            scaled.backward()
        out.append({"grads": grads(model.parameters())})
        optimizer.step()
        out.append(seen(amp, model))
    return out


@family("fp16", O1=("O1",), O2=("O2",), O3=("O3",))
def forward_inside_the_block(amp, level):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale=32.0, verbosity=0)
    out = []
    for i in range(2):
        optimizer.zero_grad()
        x, y = batch(i)
        with amp.scale_loss(F.mse_loss(model(x).float(), y), optimizer) as scaled:
            scaled.backward()
            second = model(x)
            (F.l1_loss(second.float(), y) * 32.0).backward()
        out.append({"dtype": str(second.dtype), "grads": master_grads(amp, optimizer)})
        optimizer.step()
        out.append(seen(amp, model))
    return out


# ---------------------------------------------------------------------------------- losses


@family("fp16", O0=("O0", None), O0_4=("O0", 4.0), O1=("O1", None), O2=("O2", None), O3=("O3", None))
def kinds_of_losses(amp, level, scale):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale=scale, verbosity=0)
    out = []
    for dtype in (torch.float16, torch.float32, torch.float64):
        x, y = batch(0)
        loss = F.mse_loss(model(x).float(), y).to(dtype)
        with amp.scale_loss(loss, optimizer) as scaled:
            out.append({"kind": str(scaled.dtype), "shape": list(scaled.shape), "value": scaled.item()})
    with amp.scale_loss(torch.ones(2, 2, dtype=torch.float16), optimizer) as scaled:
        out.append({"kind": str(scaled.dtype), "values": scaled.tolist()})
    with amp.scale_loss(torch.tensor(3), optimizer) as scaled:
        out.append({"kind": str(scaled.dtype), "value": scaled.item()})
    return out


@family("fp16", O1=("O1",), O2=("O2",))
def vector_loss(amp, level):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    out = []
    for i in range(3):
        x, y = batch(i)
        optimizer.zero_grad()
        with amp.scale_loss((model(x).float() - y).pow(2).mean(1), optimizer) as scaled:
            scaled.backward(torch.tensor([0.1, 0.2, 0.3, 0.4]))
        optimizer.step()
        out.append(seen(amp, model))
    return out


@family("fp16", O1=("O1",), O2=("O2",), off=(None,))
def wrong_arguments_of_scale_loss(amp, level):
    def enter(*args, **kw):
        with amp.scale_loss(*args, **kw) as scaled:
            scaled.backward()

    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level or "O1", enabled=bool(level), verbosity=0)

    def loss():
        return F.mse_loss(model(batch(0)[0]).float(), batch(0)[1])

    return [
        {"number": caught(lambda: enter(1.5, optimizer))},
        {"id_too_large": caught(lambda: enter(loss(), optimizer, loss_id=1))},
        {"id_negative": caught(lambda: enter(loss(), optimizer, loss_id=-1))},
        {"id_far_negative": caught(lambda: enter(loss(), optimizer, loss_id=-2))},
        {"id_text": caught(lambda: enter(loss(), optimizer, loss_id="0"))},
        {"id_none": caught(lambda: enter(loss(), optimizer, loss_id=None))},
        {"nothing": caught(lambda: enter())},
        {"unknown": caught(lambda: enter(loss(), optimizer, scale=2))},
        {"model": caught(lambda: enter(loss(), optimizer, 0, model))},
        {"empty": caught(lambda: enter(loss(), []))},
        {"positional": caught(lambda: enter(loss(), optimizer, 0, None, True, False))},
        {"rest": caught(lambda: enter(loss(), optimizer))},
        {"scales": scales(amp) if level else None},
    ]


@scenario("fp16")
def wrong_arguments_of_initialize(amp):
    def error(level="O1", models=None, optimizers=None, **kw):
        model = mlp()
        chosen = sgd(model) if optimizers is None else optimizers
        return caught(lambda: amp.initialize(models or model, chosen, opt_level=level, verbosity=0, **kw))

    model = mlp()
    return [
        {"level": [error(level) for level in ("O6", "o1", "1", "", " O1")]},
        {"scale": [error(loss_scale=s) for s in ("abc", "Dynamic", "", "1e3")]},
        {"bn": [error("O2", keep_batchnorm_fp32=k) for k in (1, 0, "true", "yes", "False")]},
        {"bn_O1": [error(keep_batchnorm_fp32=k) for k in (True, False, "True")]},
        {"masters_O1": [error(master_weights=k) for k in (True, False)]},
        {"type_O1": [error(cast_model_type=k) for k in (torch.float16, torch.float32, False)]},
        {"patches": [error(level, patch_torch_functions=True) for level in ("O0", "O1", "O2", "O3")]},
        {"no_patches": [error(level, patch_torch_functions=False) for level in ("O0", "O1", "O2", "O3")]},
        {"models": [error(models=m) for m in ("model", 3, (mlp(),), {"a": mlp()}, mlp().parameters())]},
        {"optimizers": [error(optimizers=o) for o in ("sgd", (sgd(model),), {"a": 1})]},
        {"unknown": error(scale=1)},
        {"nothing": caught(lambda: amp.initialize())},
        {"losses": [error(num_losses=n) for n in (0, 2)]},
    ]


# ---------------------------------------------------------------------------------- forward


class Nested(torch.nn.Module):
    """Returns its inputs and its result in containers of several kinds."""

    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x, scale=1.0, extra=None, flags=None):
        y = self.net(x) * scale
        seen = [str(v.dtype) for v in (extra or {}).values() if torch.is_tensor(v)]
        return {
            "y": y,
            "pair": (y, [y.sum(), 3, None, "text"]),
            "ids": torch.tensor([1, 2]),
            "seen": seen,
            "flags": flags,
        }


def kinds(value):
    if torch.is_tensor(value):
        return str(value.dtype)
    if isinstance(value, dict):
        return {k: kinds(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *[kinds(v) for v in value]]
    return repr(value)


@family(
    "fp16",
    **{f"{lv}_{'as_it_is' if d is None else str(d).split('.')[1]}": (lv, d)
       for lv in ("O0", "O1", "O2", "O3") for d in (None, torch.float16, torch.float32, torch.float64)
       if (lv, d) != ("O1", None)},
)  # fmt: skip
def nested_outputs(amp, level, dtype):
    model = Nested()
    model = amp.initialize(model, opt_level=level, cast_model_outputs=dtype, verbosity=0)
    x, _ = batch(0)
    extra = {"a": x, "b": x.double(), "c": torch.tensor([1]), "d": x.half(), "e": torch.tensor([True]), "f": 2.5}
    return [
        {"kinds": kinds(model(x))},
        {"kinds": kinds(model(x=x, scale=torch.tensor(2.0), extra=extra, flags=[True, None, "on", 7]))},
        {"direct": kinds(model.forward(x))},
    ]


class Probe(torch.nn.Module):
    """Says what kinds of inputs arrive."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(2))

    def forward(self, *args, **kwargs):
        self.got = [kinds(args), kinds(kwargs), [type(a).__name__ for a in args]]
        return None


class Batch:
    def __init__(self, x):
        self.x = x

    def to(self, dtype):
        return Batch(self.x.to(dtype))


@family("fp16", O0=("O0",), O1=("O1",), O2=("O2",), O3=("O3",))
def kinds_of_inputs(amp, level):
    model = amp.initialize(Probe(), opt_level=level, verbosity=0)
    x = torch.ones(2)
    out = []
    for arguments in (
        (x,), (x.double(),), (x.half(),), (x.long(),), (x.bool(),), (x > 0, x), ([x, [x, (x,)]],),
        ({"a": x, "b": {"c": [x]}},),
        (None, 1, 2.5, "text", b"bytes", True), ((), [], {}),
        (x.to(torch.complex64),), (x.bfloat16(),), ({1: x},),
    ):  # fmt: skip
        model(*arguments)
        out.append({"got": model.got})
    model(x, key=x.double(), text="a", none=None)
    out.append({"got": model.got})
    item = Batch(x)
    model(item)
    out.append({"got": [model.got[2]]})
    return out


@family("fp16", O1=("O1",), O2=("O2",), O3=("O3",))
def inputs_that_require_grad(amp, level):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale=16.0, verbosity=0)
    out = []
    for dtype in (torch.float32, torch.float64) if level != "O1" else (torch.float32,):
        x, y = batch(0)
        x = x.to(dtype).requires_grad_()
        with amp.scale_loss(F.mse_loss(model(x).float(), y), optimizer) as scaled:
            scaled.backward()
        out.append({"kind": str(x.grad.dtype), "x": grads([x])})
    return out


@family("fp16", O1=("O1",), O2=("O2",), O3=("O3",), O0=("O0",))
def evaluation(amp, level):
    model = mlp(batchnorm=True)
    model, optimizer = amp.initialize(model, sgd(model), opt_level=level, verbosity=0)
    out = train(amp, model, optimizer, 2)
    model.eval()
    with torch.no_grad():
        prediction = model(batch(7)[0])
    out.append({"kind": str(prediction.dtype), "grad": prediction.requires_grad, "y": prediction.double().tolist()})
    model.train()
    return out + train(amp, model, optimizer, 2, first=2)


@scenario("fp16")
def O1_functions_outside_of_models(amp):
    model = mlp()
    amp.initialize(model, sgd(model), opt_level="O1", verbosity=0)
    x, w = wave(3, 6), wave(4, 6)
    other = mlp()
    found = {
        "linear": F.linear(x, w), "matmul": torch.matmul(x, w.t()), "method": x.matmul(w.t()), "operator": x @ w.t(),
        "mm": torch.mm(x, w.t()), "other_model": other(batch(0)[0]), "mse": F.mse_loss(x.half(), x.half()),
        "addmm": torch.addmm(wave(3, 4), x, w.t()), "tanh": torch.tanh(x),
        "relu": torch.relu(x.half()), "cat": torch.cat([x, x.half()]), "add": x + x.half(),
    }  # fmt: skip
    with torch.no_grad():
        found["no_grad"] = F.linear(x, w)
    with amp.disable_casts():
        found["off"] = F.linear(x, w)
        with amp.disable_casts():
            found["off_off"] = F.linear(x, w)
    found["on"] = F.linear(x, w)
    return [{"kinds": {k: str(v.dtype) for k, v in found.items()}}]


@family("fp16", **{f"{a}_{b}": (a, b) for a in ("O0", "O1", "O2", "O3") for b in ("O0", "O1", "O2", "O3") if a != b})
def initialize_again_at_another_level(amp, first, second):
    """Fresh model and optimizer; the casts of an earlier O1 stay on, the scalers are new."""
    m1 = mlp()
    m1, o1 = amp.initialize(m1, sgd(m1), opt_level=first, verbosity=0)
    out = train(amp, m1, o1, 2, bad=(1,) if first in ("O1", "O2") else ())
    m2 = mlp()
    m2, o2 = amp.initialize(m2, sgd(m2), opt_level=second, verbosity=0)
    out.append({"kinds": [str(m1(batch(0)[0]).dtype), str(m2(batch(0)[0]).dtype)], "scales": scales(amp)})
    if first == "O1":  # Apex went on with stale float16 weights
        return out
    out += train(amp, m2, o2, 2)
    return out + train(amp, m1, o1, 2, first=2)


@family("fp16", O1=("O1",), O2=("O2",))
def initialize_twice(amp, level):
    out = []
    for _ in range(2):
        model = mlp()
        model, optimizer = amp.initialize(model, sgd(model), opt_level=level, verbosity=0)
        out += train(amp, model, optimizer, 3, bad=(1,))
    return out


@scenario("fp16")
def O1_then_disabled(amp):
    model = mlp()
    model, optimizer = amp.initialize(model, sgd(model), opt_level="O1", verbosity=0)
    out = train(amp, model, optimizer, 1)
    other = mlp()
    other, plain = amp.initialize(other, sgd(other), enabled=False, verbosity=0)
    x, y = batch(0)
    with amp.scale_loss(F.mse_loss(other(x).float(), y), plain) as scaled:
        scaled.backward()
    plain.step()
    return [*out, {"kind": str(other(x).dtype), "params": tensors(other.parameters())}]


@scenario("fp16")
def models_at_once(amp):
    """Several models and optimizers; a model without optimizer is cast too."""
    a, b, teacher = mlp(), mlp(), mlp()
    (a, b, teacher), optimizer = amp.initialize(
        [a, b, teacher], torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.1), opt_level="O2", verbosity=0
    )
    out = []
    for i in range(3):
        x, _ = batch(i)
        optimizer.zero_grad()
        with torch.no_grad():
            target = teacher(x)
        loss = F.mse_loss(a(x) - b(x), target)
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        out.append(seen(amp, a, b=tensors(b.parameters()), teacher=str(target.dtype)))
    return out


# ---------------------------------------------------------------------------------- around training


@family("fp16", before_O1=("O1", True), after_O1=("O1", False), before_O2=("O2", True), after_O2=("O2", False))
def scheduler(amp, level, before):
    model = mlp()
    optimizer = sgd(model)
    if before:
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1.0 / (1 + i))
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    if not before:
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1.0 / (1 + i))
    lrs = []
    out = train(
        amp,
        model,
        optimizer,
        5,
        bad=(0, 3),
        after=lambda i: (schedule.step(), lrs.append(optimizer.param_groups[0]["lr"])),
    )
    return [*out, {"lr": lrs}]


@scenario("fp32")
def O0_closure(amp):
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O0", verbosity=0)
    x, y = batch(0)

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        return loss

    return [{"loss": optimizer.step(closure).item(), "params": tensors(model.parameters())} for _ in range(3)]


@scenario("fp16")
def O1_closure(amp):
    model = mlp()
    optimizer = sgd(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    x, y = batch(0)

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x).float(), y)
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        return loss

    return [{"loss": optimizer.step(closure).item(), **seen(amp, model)} for _ in range(3)]


@family("fp16", O1=("O1",), O2=("O2",))
def old_resume(amp, level):
    """Weights and optimizer are loaded before ``initialize``, amp's state after it."""
    model = mlp(batchnorm=True)
    model, optimizer = amp.initialize(model, adam(model), opt_level=level, verbosity=0)
    out = train(amp, model, optimizer, 3, bad=(2,))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), amp.state_dict()))
    model = mlp(batchnorm=True)
    optimizer = adam(model)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    amp.load_state_dict(saved[2])
    return out + train(amp, model, optimizer, 3, first=3)


@family("fp16", O1=("O1",), O2=("O2",), O3=("O3",))
def state_dicts(amp, level):
    model = mlp(batchnorm=True)
    model, optimizer = amp.initialize(model, sgd(model), opt_level=level, verbosity=0)
    out = train(amp, model, optimizer, 2)
    state = model.state_dict()
    out.append({"kinds": {k: str(v.dtype) for k, v in state.items()}, "values": tensors(state.values())})
    out.append({"part": {k: str(v.dtype) for k, v in model[0].state_dict(prefix="p.").items()}})
    model.load_state_dict({k: v.half() if v.is_floating_point() else v for k, v in state.items()})
    out.append({"after": [str(v.dtype) for v in (*model.parameters(), *model.buffers())]})
    optimizer_state = optimizer.state_dict()
    out.append({"optimizer": sorted({str(v["momentum_buffer"].dtype) for v in optimizer_state["state"].values()})})
    return out


@scenario("fp16")
def O2_weights_loaded_after_the_masters_exist(amp):
    """The masters don't notice: the next step writes them over the loaded weights."""
    model = mlp()
    model, optimizer = amp.initialize(model, sgd(model, momentum=0.0), opt_level="O2", verbosity=0)
    out = train(amp, model, optimizer, 2)
    model.load_state_dict(mlp().state_dict())
    return out + train(amp, model, optimizer, 2)


@scenario("fp16")
def O2_weights_loaded_before_the_masters_exist(amp):
    donor = fill(mlp(), gain=0.2)
    model = mlp()
    model, optimizer = amp.initialize(model, sgd(model), opt_level="O2", verbosity=0)
    model.load_state_dict(donor.state_dict())
    return train(amp, model, optimizer, 2)


@scenario("fp16")
def O1_gradient_penalty(amp):
    model = mlp()
    model, optimizer = amp.initialize(model, sgd(model), opt_level="O1", verbosity=0)
    out = []
    for i in range(3):
        x, y = batch(i)
        x.requires_grad_()
        optimizer.zero_grad()
        prediction = model(x).float()
        (g,) = torch.autograd.grad(prediction.sum(), x, create_graph=True)
        loss = F.mse_loss(prediction, y) + (g.float().pow(2).sum(1) + 1e-3).sqrt().mean()
        with amp.scale_loss(poison(loss) if i == 1 else loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        out.append(seen(amp, model))
    return out


@scenario("fp16")
def decorated_functions(amp):
    got = {}

    def note(name):
        def function(*args, **kwargs):
            got[name] = [kinds(args), kinds(kwargs)]

        return function

    half, full, widest = (
        amp.half_function(note("half")),
        amp.float_function(note("float")),
        amp.promote_function(note("widest")),
    )
    x = wave(3)
    out = []

    def call():
        for function in (half, full, widest):
            function(x, x.half(), key=x)
            function(x.half(), x.half(), n=3, text="a", none=None)
            function([x, x.half()], ids=torch.tensor([1]))
        out.append(copy.deepcopy(got))
        full(x.half(), key=[x.half(), x])
        widest(x.half(), [x.half()])
        half(x, (x, x))
        out.append(copy.deepcopy(got))

    call()
    model = mlp()
    amp.initialize(model, sgd(model), opt_level="O1", verbosity=0)
    call()
    with amp.disable_casts():
        call()
    return out


@scenario("fp16")
def registered_functions(amp):
    got = {}
    module = types.ModuleType("mine")

    def note(name):
        return lambda *args, **kwargs: got.update({name: [kinds(args), kinds(kwargs)]})

    for name in ("half", "full", "widest", "late"):
        setattr(module, name, note(name))
    amp.register_half_function(module, "half")
    amp.register_float_function(module, "full")
    amp.register_promote_function(module, "widest")
    out = [{"missing": [caught(lambda f=f: f(module, "none")) for f in (
        amp.register_half_function, amp.register_float_function, amp.register_promote_function)]}]  # fmt: skip
    x = wave(3)

    def call():
        for name in ("half", "full", "widest", "late"):
            getattr(module, name)(x, x.half(), ids=torch.tensor([1]))
        out.append(copy.deepcopy(got))

    call()
    model = mlp()
    amp.initialize(model, sgd(model), opt_level="O1", verbosity=0)
    call()
    amp.register_half_function(module, "late")
    call()
    with amp.disable_casts():
        call()
    model = mlp()
    amp.initialize(model, sgd(model), opt_level="O1", verbosity=0)
    call()
    return out


@scenario("fp16")
def banned_function(amp):
    model = mlp()
    amp.initialize(model, sgd(model), opt_level="O1", verbosity=0)
    p, t = wave(4).abs() + 0.1, torch.ones(4)
    out = [{"half": caught(lambda: F.binary_cross_entropy(p.half(), t.half()))}]
    out.append({"mixed": caught(lambda: F.binary_cross_entropy(p.half(), t))})
    out.append({"target": caught(lambda: F.binary_cross_entropy(p, t.half()))})
    out.append({"module": caught(lambda: torch.nn.BCELoss()(p.half(), t.half()))})
    out.append({"full": F.binary_cross_entropy(p, t).item(), "kind": str(F.binary_cross_entropy(p, t).dtype)})
    return out


@scenario("fp16")
def O1_state_before_and_after(amp):
    state = amp._amp_state
    out = [{"before": [hasattr(state, n) for n in ("opt_properties", "loss_scalers", "handle")]}]
    model = mlp()
    optimizer = sgd(model)
    out.append({"stash": hasattr(optimizer, "_amp_stash")})
    out.append({"scale_loss": caught(lambda: amp.scale_loss(torch.ones(()), optimizer).__enter__())})
    model2, optimizer2 = amp.initialize(model, optimizer, opt_level="O1", num_losses=2, verbosity=0)
    out.append({"after": [hasattr(state, n) for n in ("opt_properties", "loss_scalers", "handle")]})
    out.append({"same": [model2 is model, optimizer2 is optimizer], "stash": hasattr(optimizer, "_amp_stash")})
    out.append(
        {
            "scalers": len(state.loss_scalers),
            "active": state.handle.is_active(),
            "dynamic": state.loss_scalers[0].dynamic,
        }
    )
    out.append({"options": {k: str(v) for k, v in state.opt_properties.options.items()}})
    with amp.disable_casts():
        out.append({"active": state.handle.is_active()})
    out.append({"active": state.handle.is_active()})
    return out
