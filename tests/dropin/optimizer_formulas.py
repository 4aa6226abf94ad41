"""The update formulas of Apex's optimizers, operation by operation, as published in its kernels.

Each function is ``step(group, params, grads, states, t)`` and changes ``params`` and ``states`` (one dict for each)
in place; ``group`` holds the settings, ``t`` counts from 1.
"""

from __future__ import annotations

import math


def zeros(state, name, like):
    if name not in state:
        state[name] = like * 0
    return state[name]


def corrections(group, t):
    if not group["bias_correction"]:
        return 1.0, 1.0
    beta1, beta2 = group["betas"]
    return 1 - beta1**t, 1 - beta2**t


def average(state, name, g, beta, share):
    zeros(state, name, g)
    state[name] = beta * state[name] + share * g
    return state[name]


def adam(group, params, grads, states, t):
    beta1, beta2 = group["betas"]
    c1, c2 = corrections(group, t)
    decay = group["weight_decay"]
    for p, g, state in zip(params, grads, states):
        if not group["adam_w_mode"]:
            g = g + decay * p
        m = average(state, "exp_avg", g, beta1, 1 - beta1)
        v = average(state, "exp_avg_sq", g * g, beta2, 1 - beta2)
        update = (m / c1) / ((v / c2).sqrt() + group["eps"])
        if group["adam_w_mode"]:
            update = update + decay * p
        p -= group["lr"] * update


def old_adam(group, params, grads, states, t, scale=1.0):
    beta1, beta2 = group["betas"]
    c1, c2 = corrections(group, t)
    if group["max_grad_norm"] > 0:
        norm = math.sqrt(sum(float((g * g).sum()) for g in grads))
        clip = (norm / scale + 1e-6) / group["max_grad_norm"]
        scale = scale * max(clip, 1.0)
    for p, g, state in zip(params, grads, states):
        g = g / scale
        m = average(state, "exp_avg", g, beta1, 1 - beta1)
        v = average(state, "exp_avg_sq", g * g, beta2, 1 - beta2)
        root = (v + group["eps"]).sqrt() if group["eps_inside_sqrt"] else v.sqrt() + group["eps"]
        p -= group["lr"] * math.sqrt(c2) / c1 * (m / root + group["weight_decay"] * p)


def sgd(group, params, grads, states, t):
    decay, momentum = group["weight_decay"], group["momentum"]
    for p, g, state in zip(params, grads, states):
        if not group["wd_after_momentum"]:
            g = g + decay * p
        if momentum:
            if "momentum_buffer" in state:
                state["momentum_buffer"] = momentum * state["momentum_buffer"] + (1 - group["dampening"]) * g
            else:
                state["momentum_buffer"] = g.clone()
            g = g + momentum * state["momentum_buffer"] if group["nesterov"] else state["momentum_buffer"]
        if group["wd_after_momentum"]:
            g = g + decay * p
        p -= group["lr"] * g


def adagrad(group, params, grads, states, t):
    for p, g, state in zip(params, grads, states):
        if not group["adagrad_w_mode"]:
            g = g + group["weight_decay"] * p
        h = average(state, "sum", g * g, 1.0, 1.0)
        update = g / (h.sqrt() + group["eps"])
        if group["adagrad_w_mode"]:
            update = update + group["weight_decay"] * p
        p -= group["lr"] * update


def lamb(group, params, grads, states, t):
    """The group's ``global_norm`` is that of the gradients of all groups."""
    beta1, beta2 = group["betas"]
    c1, c2 = corrections(group, t)
    decay, largest = group["weight_decay"], group["max_grad_norm"]
    clip = group["global_norm"] / largest if group["global_norm"] > largest else 1.0
    for p, g, state in zip(params, grads, states):
        g = g / clip
        if not group["adam_w_mode"]:
            g = g + decay * p
        m = average(state, "exp_avg", g, beta1, 1 - beta1 if group["grad_averaging"] else 1.0)
        v = average(state, "exp_avg_sq", g * g, beta2, 1 - beta2)
        update = (m / c1) / ((v / c2).sqrt() + group["eps"])
        if group["adam_w_mode"]:
            update = update + decay * p
        ratio = 1.0
        if group["use_nvlamb"] or decay != 0:
            ours, theirs = float(p.norm()), float(update.norm())
            ratio = ours / theirs if ours != 0 and theirs != 0 else 1.0
        p -= group["lr"] * ratio * update


def novograd(group, params, grads, states, t):
    beta1, beta2 = group["betas"]
    c1, c2 = corrections(group, t)
    share = 1 - beta1 if group["grad_averaging"] else 1.0
    for p, g, state in zip(params, grads, states):
        norm = float(g.abs().max()) if group["norm_type"] == 0 else float(g.norm())
        before = state.get("norm", 0.0 if group["init_zero"] else norm)
        if group["norm_type"] == 0:
            state["norm"] = beta2 * before + (1 - beta2) * norm
        else:
            state["norm"] = math.sqrt(beta2 * before**2 + (1 - beta2) * norm**2)
        denominator = state["norm"] / math.sqrt(c2) + group["eps"]
        if group["reg_inside_moment"]:
            m = average(state, "exp_avg", g / denominator + group["weight_decay"] * p, beta1, share)
            p -= group["lr"] * m / c1
        else:
            m = average(state, "exp_avg", g, beta1, share)
            p -= group["lr"] * (m / c1 / denominator + group["weight_decay"] * p)
