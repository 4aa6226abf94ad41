"""A training step on the drop-in against the same step written by hand with native AMP.

A 2-layer transformer encoder, O1, SGD and Adam, with and without accumulation. Counts dispatched operations
(TorchDispatchMode), reads from device to host, and time (both sides in turns in one process, ratio of medians).

    python benchmarks/training_step.py [--steps 60] [--device-type cpu]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from typing import Any, Callable

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from amp_migrate.apex import amp
from amp_migrate.apex.amp._amp_state import _amp_state
from amp_migrate.apex.amp._patches import patches

OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
    "Adam": lambda params: torch.optim.Adam(params, lr=1e-4),
    "fused Adam": lambda params: torch.optim.Adam(params, lr=1e-4, fused=True),
}


class CountOperations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func._schema.name)] += 1
        return func(*args, **(kwargs or {}))


class Classifier(nn.Module):
    def __init__(self, width: int, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def batches(width: int, parts: int, device: str) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8 * parts, 16, width, generator=generator).to(device)
    y = torch.randint(0, 10, (8 * parts,), generator=generator).to(device)
    return list(zip(x.chunk(parts), y.chunk(parts)))


def native_step(make: Any, width: int, parts: int, device: str) -> Callable[[], None]:
    torch.manual_seed(0)
    model = Classifier(width).to(device)
    optimizer = make(model.parameters())
    scaler = torch.amp.GradScaler(device)
    data = batches(width, parts, device)

    def step() -> None:
        optimizer.zero_grad()
        for x, y in data:
            with torch.autocast(device, dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def dropin_step(make: Any, width: int, parts: int, device: str) -> Callable[[], None]:
    torch.manual_seed(0)
    model = Classifier(width).to(device)
    model, optimizer = amp.initialize(model, make(model.parameters()), opt_level="O1", verbosity=0)
    data = batches(width, parts, device)

    def step() -> None:
        optimizer.zero_grad()
        for x, y in data:
            loss = nn.functional.cross_entropy(model(x), y)
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
        optimizer.step()

    return step


def switch_off() -> None:
    """Casts off, so that the native side runs as if amp weren't there."""
    patches.undo_all()
    _amp_state.clear()


def count(make_step: Any, *args: Any) -> Counter[str]:
    step = make_step(*args)
    for _ in range(3):
        step()
    mode = CountOperations()
    with mode:
        step()
    switch_off()
    return mode.counts


def seconds(make_step: Any, steps: int, *args: Any) -> float:
    step = make_step(*args)
    for _ in range(3):
        step()
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        if args[-1] == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    switch_off()
    return statistics.median(times)


def time_ratio(steps: int, *args: Any) -> float:
    """Median over rounds of (drop-in / native), each round measuring both."""
    ratios = []
    for turn in range(5):
        pair = [native_step, dropin_step] if turn % 2 == 0 else [dropin_step, native_step]
        measured = {side: seconds(side, steps, *args) for side in pair}
        ratios.append(measured[dropin_step] / measured[native_step])
    return statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--device-type", default="cpu")
    parser.add_argument("--no-time", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {options.device_type}")
    print(
        f"{'optimizer':12} {'backwards':>9} {'native':>7} {'drop-in':>8} {'ratio':>6} {'reads':>9} {'time ratio':>10}"
    )
    for name, make in OPTIMIZERS.items():
        for parts in (1, 4):
            args = (make, 64, parts, options.device_type)
            native, dropin = count(native_step, *args), count(dropin_step, *args)
            n, d = sum(native.values()), sum(dropin.values())
            reads = f"{native['aten::_local_scalar_dense']} / {dropin['aten::_local_scalar_dense']}"
            ratio = "" if options.no_time else f"{time_ratio(options.steps, *args):.3f}"
            print(f"{name:12} {parts:9} {n:7} {d:8} {d / n:6.3f} {reads:>9} {ratio:>10}", flush=True)


if __name__ == "__main__":
    main()
