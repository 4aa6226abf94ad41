"""Runs of ``fp16_utils`` whose arithmetic is the same on every torch: elementwise, and float32 where half may lack.

``python -m tests.dropin.fp16_scenarios`` with the real Apex's parent folder on PYTHONPATH records ``fp16_traces.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

TRACES = Path(__file__).with_name("fp16_traces.json")


class Squares(torch.nn.Module):
    """Two half parameters, one in float32 and one that isn't trained; the loss is a sum of squares."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Parameter(torch.tensor([0.5, -1.25, 2.0, 0.125]).half())
        self.b = torch.nn.Parameter(torch.tensor([[1.5], [-0.75]]).half())
        self.c = torch.nn.Parameter(torch.tensor([0.25, 3.0]))
        self.frozen = torch.nn.Parameter(torch.tensor([1.0]).half(), requires_grad=False)

    def forward(self, x: float) -> torch.Tensor:
        return ((self.a.float() * x - 1) ** 2).sum() + ((self.b.float() + x) ** 2).sum() + (self.c * x).pow(2).sum()


def groups(model: Squares) -> list[dict[str, Any]]:
    return [{"params": [model.a, model.c]}, {"params": [model.b, model.frozen], "lr": 0.02}]


def sgd(model: Squares) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups(model), lr=0.01, momentum=0.9)


def adam(model: Squares) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups(model), lr=0.01)


def numbers(tensors: Any) -> list[Any]:
    return [t.detach().double().tolist() for t in tensors]


def observe(model: Squares, optimizer: Any) -> dict[str, Any]:
    return {
        "scale": optimizer.loss_scale,
        "overflow": bool(optimizer.overflow),
        "model": numbers(model.parameters()),
        "masters": numbers(p for g in optimizer.param_groups for p in g["params"]),
        "unskipped": optimizer.loss_scaler._unskipped,
    }


def static(fp16: Any) -> Any:
    """A static scale through eight steps."""
    model = Squares()
    optimizer = fp16.FP16_Optimizer(sgd(model), static_loss_scale=128.0, verbose=False)
    trace = []
    for step in range(8):
        optimizer.zero_grad()
        optimizer.backward(model(0.5 + 0.25 * step))
        optimizer.step()
        trace.append(observe(model, optimizer))
    return trace


def dynamic(fp16: Any) -> Any:
    """A dynamic scale that overflows in half, meets an inf in the loss, and grows again."""
    model = Squares()
    optimizer = fp16.FP16_Optimizer(
        adam(model),
        dynamic_loss_scale=True,
        dynamic_loss_args={"init_scale": 2.0**17, "scale_window": 3},
        verbose=False,
    )
    trace = []
    for step in range(12):
        optimizer.zero_grad(set_grads_to_None=step % 2 == 0)
        loss = model(0.5)
        optimizer.backward(loss * float("inf") if step == 5 else loss)
        norm = optimizer.clip_master_grads(1.0)
        inspected = optimizer.inspect_master_grad_data()
        returned = optimizer.step()
        row = observe(model, optimizer)
        row["norm"] = float(norm)
        row["grads"] = inspected and [
            [None if g is None else g.double().tolist() for g in group] for group in inspected
        ]
        row["returned"] = returned
        trace.append(row)
    return trace


def several_losses(fp16: Any) -> Any:
    """Two losses with one copy of the gradients, and the scale set by hand."""
    model = Squares()
    optimizer = fp16.FP16_Optimizer(sgd(model), static_loss_scale=8.0, verbose=False)
    trace = []
    for step in range(3):
        optimizer.zero_grad()
        optimizer.backward(model(0.5), update_master_grads=False)
        loss = model(1.5)
        optimizer.backward(loss, update_master_grads=False, retain_graph=True)
        optimizer.backward(loss, update_master_grads=False)
        optimizer.update_master_grads()
        optimizer.step()
        trace.append(observe(model, optimizer))
        optimizer.loss_scale = 4.0 * (step + 1)
    return trace


def closure(fp16: Any) -> Any:
    """An optimizer that evaluates the loss several times in a step."""
    model = Squares()
    params = [model.a, model.b, model.c]
    optimizer = fp16.FP16_Optimizer(torch.optim.LBFGS(params, lr=0.1, max_iter=3), static_loss_scale=2.0, verbose=False)
    trace = []
    for _ in range(3):
        calls = []

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(0.75)
            optimizer.backward(loss)
            calls.append(loss.item())  # noqa: B023
            return loss

        optimizer.step(closure)
        trace.append({**observe(model, optimizer), "losses": calls, "first": optimizer.first_closure_call_this_step})
    return trace


def reload(fp16: Any) -> Any:
    """A second optimizer that goes on from the state of the first."""
    first, second = Squares(), Squares()
    options = {"dynamic_loss_scale": True, "dynamic_loss_args": {"scale_window": 4}, "verbose": False}
    optimizer = fp16.FP16_Optimizer(adam(first), **options)
    for _ in range(3):
        optimizer.zero_grad()
        optimizer.backward(first(0.5))
        optimizer.step()
    saved = optimizer.state_dict()
    resumed = fp16.FP16_Optimizer(adam(second), **options)
    resumed.load_state_dict(saved)
    second.load_state_dict(first.state_dict())
    trace: list[Any] = [sorted(saved), [len(group) for group in saved["fp32_from_fp16"]]]
    for _ in range(3):
        resumed.zero_grad()
        resumed.backward(second(0.5))
        resumed.step()
        trace.append(observe(second, resumed))
    return trace


SCENARIOS = {f.__name__: f for f in (static, dynamic, several_losses, closure, reload)}


def main() -> None:
    import apex.fp16_utils as fp16

    traces = {name: scenario(fp16) for name, scenario in SCENARIOS.items()}
    TRACES.write_text(json.dumps(traces) + "\n")
    print(f"{fp16.__file__}: {len(traces)} traces", file=sys.stderr)


if __name__ == "__main__":
    main()
