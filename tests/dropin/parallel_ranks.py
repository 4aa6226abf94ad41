"""What four processes train in ``test_parallel_processes.py``: each scenario also runs in one process, on all samples.

Run as a program: ``parallel_ranks.py RANK WORLD_SIZE FOLDER``; writes what every scenario returns to FOLDER.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

import amp_migrate.apex.amp as amp
from amp_migrate.apex.amp._amp_state import _amp_state
from amp_migrate.apex.amp._patches import patches
from amp_migrate.apex.parallel import (
    LARC,
    DistributedDataParallel,
    Reducer,
    SyncBatchNorm,
    convert_syncbn_model,
    create_syncbn_process_group,
)

SAMPLES = 32
HAS_HOOKS = hasattr(nn.parallel.DistributedDataParallel, "register_comm_hook")


class Place(NamedTuple):
    """Which of how many processes."""

    rank: int
    world_size: int

    def wrap(self, model: nn.Module, **options: Any) -> Any:
        """DistributedDataParallel, but not in a single process."""
        return DistributedDataParallel(model, **options) if self.world_size > 1 else model

    def part(self, samples: Tensor) -> Tensor:
        """This process's samples."""
        return samples.chunk(self.world_size)[self.rank]


def samples(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(SAMPLES, *shape, generator=generator)


def small_model(seed: int = 7) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def values(model: nn.Module) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in getattr(model, "module", model).state_dict().values()]


def grads(model: nn.Module) -> list[Any]:
    return [None if p.grad is None else p.grad.detach().clone() for p in model.parameters()]


def wrapping(place: Place) -> Any:
    """Parameters of the first process for all, each its own buffers, also after a forward."""
    torch.manual_seed(place.rank)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    model[1].running_mean.fill_(float(place.rank))
    wrapped = place.wrap(model)
    before = values(model)
    wrapped(samples(6)).sum().backward()
    return {"before": before, "buffer": model[1].running_mean.clone(), "keys": list(wrapped.state_dict())}


def plain_training(place: Place) -> Any:
    model = small_model()
    wrapped = place.wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(5):
        optimizer.zero_grad()
        wrapped(place.part(samples(6, seed=step))).pow(2).mean().backward()
        optimizer.step()
    return values(model)


def reductions(place: Place) -> Any:
    """Gradients under each option of the reduction."""
    asked: dict[str, dict[str, Any]] = {"mean": {}}
    if HAS_HOOKS:
        asked["predivide"] = {"gradient_predivide_factor": 3.0}
        asked["sum"] = {"gradient_average": False}
        asked["predivided sum"] = {"gradient_average": False, "gradient_predivide_factor": 4.0}
        asked["fp32"] = {"allreduce_always_fp32": True}
    result = {}
    for name, options in asked.items():
        model = small_model()
        wrapped = place.wrap(model, **options)
        for _ in range(2):
            wrapped.zero_grad()
            wrapped(place.part(samples(6))).pow(2).mean().backward()
        result[name] = grads(model)
    return result


class Half(nn.Module):
    """A half parameter that every device can train: its gradient is the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, dtype=torch.float16))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight.float() * x).sum()


def half_gradients(place: Place) -> Any:
    """The sum of these gradients doesn't fit float16, their mean does."""
    result = {}
    for name, options in {
        "fp32": {"allreduce_always_fp32": True},
        "predivide": {"gradient_predivide_factor": 8.0},
    }.items():
        model = Half()
        wrapped = place.wrap(model, **(options if HAS_HOOKS else {}))
        wrapped(torch.full((4,), 40000.0)).backward()
        result[name] = grads(model)
    return result


class Branches(nn.Module):
    """``never`` gets no gradient; ``sometimes`` only where the caller says so."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.always, self.sometimes, self.never = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor, detour: bool) -> Tensor:
        x = self.always(x)
        return self.sometimes(x) if detour else x


def _train_branches(place: Place, detours: list[bool], **options: Any) -> Any:
    model = Branches()
    wrapped = place.wrap(model, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, detour in enumerate(detours):
        for param in model.parameters():
            param.grad = None
        wrapped(place.part(samples(6, seed=step)), detour).pow(2).mean().backward()
        optimizer.step()
    return values(model), [grad is None for grad in grads(model)]


def delayed_with_unused(place: Place) -> Any:
    return _train_branches(place, [False, True, False, True], delay_allreduce=True)


def never_used(place: Place) -> Any:
    return _train_branches(place, [False] * 4)


def batchnorm_training(place: Place) -> Any:
    """Convolutions and batchnorm, in training; then an evaluation."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    if place.world_size > 1:
        model = convert_syncbn_model(model)
    wrapped = place.wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(5):
        optimizer.zero_grad()
        wrapped(place.part(samples(3, 6, 6, seed=step))).pow(2).mean().backward()
        optimizer.step()
    model.eval()
    return {"state": values(model), "evaluated": model(samples(3, 6, 6)).detach()}


LAYOUTS: dict[str, dict[str, Any]] = {
    "channels first": {},
    "channels last": {"channel_last": True},
    "relu of a sum": {"fuse_relu": True},
    "no parameters": {"affine": False},
    "cumulative": {"momentum": None},
    "no running statistics": {"track_running_stats": False},
}


def batchnorm_layers(place: Place) -> Any:
    """Output, gradients and running statistics of one layer; processes have batches of different sizes."""
    result: dict[str, Any] = {}
    for name, options in LAYOUTS.items():
        shape = (5, 7, 4) if options.get("channel_last") else (4, 5, 7)
        parts = samples(*shape, seed=5).split([2, 14, 6, 10])
        others = samples(*shape, seed=6).split([2, 14, 6, 10])
        x, z = (
            (parts[place.rank], others[place.rank]) if place.world_size > 1 else (torch.cat(parts), torch.cat(others))
        )
        x, z = x.clone().requires_grad_(), z.clone().requires_grad_()
        layer = SyncBatchNorm(4, **options)
        for _ in range(2):
            out = layer(x * 3 + 1, z) if options.get("fuse_relu") else layer(x * 3 + 1)
        (out.pow(3).sum() + out.sum()).backward()
        result[name] = {
            "pieces": [out.detach(), x.grad] + ([z.grad] if z.grad is not None else []),
            "sums": [p.grad for p in layer.parameters()],
            "buffers": [b.clone() for b in layer.buffers()],
        }
    return result


def half_batchnorm(place: Place) -> Any:
    """Half inputs beside float32 parameters, as in O1 and O2."""
    x = place.part(samples(4, 5)).half().requires_grad_()
    out = SyncBatchNorm(4)(x)
    out.float().pow(3).sum().backward()
    assert x.grad is not None
    return {"pieces": [out.detach(), x.grad]}


def batchnorm_in_groups(place: Place) -> Any:
    """Two groups of two processes, each with its own statistics."""
    group = create_syncbn_process_group(2) if place.world_size > 1 else None
    x = samples(4)
    if place.world_size > 1:
        return SyncBatchNorm(4, process_group=group)(place.part(x)).detach()
    return torch.cat([SyncBatchNorm(4)(half) for half in x.chunk(2)]).detach()


def no_groups(place: Place) -> Any:
    if place.world_size == 1:
        return None
    errors = []
    for size in (3, 5):
        try:
            create_syncbn_process_group(size)
        except AssertionError as error:
            errors.append(str(error))
    return create_syncbn_process_group(0), errors


def _amp_training(place: Place, make_optimizer: Callable[[Any], Any], level: str) -> Any:
    model = small_model()
    optimizer = make_optimizer(model.parameters())
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale="dynamic")
    wrapped = place.wrap(model)
    for step in range(6):
        optimizer.zero_grad()
        loss = wrapped(place.part(samples(6, seed=step))).float().pow(2).mean()
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
    return values(model)


def larc(place: Place) -> Any:
    def make(params: Any) -> Any:
        return LARC(torch.optim.SGD(params, lr=0.5, momentum=0.9, weight_decay=0.01), trust_coefficient=0.1)

    return {level: _amp_training(place, make, level) for level in ("O0", "O1", "O2")}


def overflow_in_one(place: Place) -> Any:
    """The loss of one process is infinite in the third of six steps: all skip it, all halve their scales."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    wrapped = place.wrap(model)
    history = []
    for step in range(6):
        optimizer.zero_grad()
        loss = wrapped(place.part(samples(6, seed=step))).float().pow(2).mean()
        if step == 2 and place.rank == place.world_size - 1:
            loss = loss * float("inf")
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        before = values(model)
        optimizer.step()
        unchanged = all(torch.equal(a, b) for a, b in zip(before, values(model)))
        history.append((unchanged, _amp_state.loss_scalers[0].loss_scale()))
    return {"history": history, "state": values(model)}


def accumulation(place: Place) -> Any:
    """Two micro-batches per step; gradients are averaged with the second only. ``overflow``: the first micro-batch
    of the second step is infinite in one process."""
    result = {}
    for name in ("switched before forward", "switched before backward", "overflow"):
        fresh()
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
        wrapped = place.wrap(model)
        alone = []
        for step in range(4):
            optimizer.zero_grad()
            for micro in range(2):
                if place.world_size > 1 and name != "switched before backward":
                    (wrapped.enable_allreduce if micro else wrapped.disable_allreduce)()
                x = place.part(samples(6, seed=2 * step + micro))
                loss = wrapped(x).float().pow(2).mean() / 2
                if name == "overflow" and (step, micro) == (1, 0) and place.rank == place.world_size - 1:
                    loss = loss * float("inf")
                if place.world_size > 1 and name == "switched before backward" and not micro:
                    wrapped.disable_allreduce()
                with amp.scale_loss(loss, optimizer) as scaled:
                    scaled.backward()
                if place.world_size > 1 and name == "switched before backward" and not micro:
                    wrapped.enable_allreduce()
                if not micro:
                    alone = grads(model)
            optimizer.step()
        result[name] = {"state": values(model), "alone": alone, "scale": _amp_state.loss_scalers[0].loss_scale()}
    return result


def reducer(place: Place) -> Any:
    model = small_model(seed=place.rank if place.world_size > 1 else 0)
    by_module = Reducer(model) if place.world_size > 1 else None
    model(place.part(samples(6))).pow(2).mean().backward()
    if by_module is not None:
        by_module.reduce()
    loose = {"a": torch.full((2,), float(place.rank)), "b": torch.full((3,), place.rank, dtype=torch.float64)}
    if place.world_size > 1:
        Reducer([loose["a"], [loose["b"]]]).reduce()
    return {"grads": grads(model), "loose": loose}


def frozen(place: Place) -> Any:
    """A model without anything to train can be wrapped."""
    model = small_model(seed=place.rank if place.world_size > 1 else 0)
    for param in model.parameters():
        param.requires_grad_(False)
    wrapped = place.wrap(model).eval()
    return wrapped(samples(6))


SCENARIOS: list[Callable[[Place], Any]] = [
    wrapping,
    plain_training,
    reductions,
    half_gradients,
    delayed_with_unused,
    never_used,
    batchnorm_training,
    batchnorm_layers,
    half_batchnorm,
    batchnorm_in_groups,
    no_groups,
    larc,
    overflow_in_one,
    accumulation,
    reducer,
    frozen,
]


def fresh() -> None:
    patches.undo_all()
    _amp_state.clear()


def main(rank: int, world_size: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world_size)
    results = {}
    for scenario in SCENARIOS:
        results[scenario.__name__] = scenario(Place(rank, world_size))
        fresh()
    torch.save(results, os.path.join(folder, f"{rank}.pt"))
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # torch 2.13 sometimes aborts at exit after gloo


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
