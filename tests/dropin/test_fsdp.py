"""Models whose parameters are sharded over two processes: an overflow in one's shard is everybody's."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from amp_migrate.apex import _native

from . import needs_float16

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
    import os, sys, torch
    import torch.distributed as dist
    from torch import nn
    from apex import amp

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    if sys.argv[1] == "wrapper":
        from torch.distributed.fsdp import FullyShardedDataParallel
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)

    def shards():
        return [getattr(p, "to_local", lambda: p)().detach().clone() for p in model.parameters()]

    torch.manual_seed(rank + 1)
    for step in range(5):
        for part in range(2):
            x, y = torch.randn(4, 6), torch.randn(4, 2)
            loss = ((model(x).float() - y) ** 2).mean() / 16
            if step == 2 and rank == 1 and part == 1:
                loss = loss * float("inf")
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
        before = shards()
        optimizer.step()
        optimizer.zero_grad()
        still = all(torch.equal(a, b) for a, b in zip(before, shards()))
        scaler = amp.state_dict()["loss_scaler0"]
        row = f"\\nrank {rank} {step} {still} {int(scaler['loss_scale'])} {scaler['unskipped']}\\n"
        os.write(1, row.encode())  # in one piece: the processes share a pipe
    os._exit(0)  # torch 2.13 sometimes aborts while Python shuts down after gloo
"""


@pytest.mark.slow
@needs_float16
@pytest.mark.parametrize("how", ["wrapper", "fully_shard"])
def test_an_overflow_in_one_shard_skips_the_step_of_all(tmp_path: Path, how: str) -> None:
    if how == "fully_shard":
        pytest.importorskip("torch.distributed.fsdp", reason="no FSDP")
        if not hasattr(getattr(torch.cpu, "Stream", None), "record_event"):
            pytest.skip("this torch's fully_shard doesn't run on a CPU, if it has one (2.7)")
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM), encoding="utf-8")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [*launch, "-m", "amp_migrate.run", str(program), how],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = sorted(line.split()[1:] for line in done.stdout.splitlines() if line.startswith("rank "))
    expected = [["False", "65536", "2"], ["False", "65536", "4"], ["True", "32768", "0"], ["False", "32768", "2"]]
    for rank in "01":
        of_rank = [line[2:] for line in lines if line[0] == rank]
        assert of_rank[:4] == expected, done.stdout


def test_sharded_models_are_told_by_their_class() -> None:
    class FSDPModule:
        pass

    class Sharded(FSDPModule, nn.Linear):
        pass

    assert _native.is_sharded([nn.Linear(1, 1), Sharded(1, 1)])
    assert not _native.is_sharded([nn.Linear(1, 1)])
