"""The recorder: what a run did, the same for the drop-in, for native AMP and for plain training."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from conftest import PROGRAMS
from isolated import run_program
from torch import nn

from amp_migrate.apex import amp
from amp_migrate.record import Record, Recorder, bit_checksum, gradient_norm

DATA = [(torch.randn(4, 6, generator=torch.Generator().manual_seed(i)), i) for i in range(6)]


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 2))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def loss_of(model: nn.Module, x: torch.Tensor, step: int, bad: int) -> torch.Tensor:
    loss = model(x).float().pow(2).mean()
    return loss * float("inf") if step == bad else loss


def train_dropin(bad: int = -1, parts: int = 1) -> Record:
    model, optimizer = build()
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    with Recorder() as recorder:
        for step, (x, _) in enumerate(DATA):
            for _ in range(parts):
                loss = loss_of(model, x, step, bad) / parts
                with amp.scale_loss(loss, optimizer) as scaled:
                    scaled.backward()
            optimizer.step()
            optimizer.zero_grad()
    return recorder.record


def train_native(bad: int = -1, parts: int = 1) -> Record:
    model, optimizer = build()
    scaler = torch.amp.GradScaler("cpu")
    with Recorder() as recorder:
        for step, (x, _) in enumerate(DATA):
            for _ in range(parts):
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = loss_of(model, x, step, bad) / parts
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return recorder.record


def train_plain() -> Record:
    model, optimizer = build()
    with Recorder() as recorder:
        for step, (x, _) in enumerate(DATA):
            loss_of(model, x, step, -1).backward()
            optimizer.step()
            optimizer.zero_grad()
    return recorder.record


@pytest.mark.parametrize("bad", [-1, 2])
@pytest.mark.parametrize("parts", [1, 3])
def test_the_drop_in_and_native_amp_train_bitwise_the_same(bad: int, parts: int) -> None:
    dropin, native = train_dropin(bad, parts), train_native(bad, parts)
    assert [s.checksum for s in dropin.steps] == [s.checksum for s in native.steps]
    assert [s.skipped for s in dropin.steps] == [s.skipped for s in native.steps] == [i == bad for i in range(6)]
    assert [s.losses for s in dropin.steps if not s.skipped] == [s.losses for s in native.steps if not s.skipped]
    if parts == 1:  # natively an overflow counts once per step, under Apex once per backward
        assert [s.scale for s in dropin.steps] == [s.scale for s in native.steps]


@pytest.mark.parametrize("parts", [1, 3])
def test_the_operations_up_to_each_backward_are_the_same(parts: int) -> None:
    def texts(record: Record) -> list[list[list[str]]]:
        return [[[record.operations[i] for i in record.sequences[n]] for n in s.sequences] for s in record.steps]

    dropin, native = texts(train_dropin(parts=parts)), texts(train_native(parts=parts))
    assert dropin == native
    assert [len(step) for step in dropin] == [parts] * 6
    assert any(op.startswith("aten.addmm(float16") and op.endswith(" on") for op in dropin[0][0])


def test_float32_training_differs_in_its_operations() -> None:
    plain = train_plain()
    assert plain.steps[0].scale is None
    assert not any("float16" in op or op.endswith(" on") for op in plain.operations)
    assert plain.steps[-1].checksum != train_dropin().steps[-1].checksum


def test_gradient_norms_are_unscaled_and_those_of_the_step() -> None:
    dropin, native, plain = train_dropin(), train_native(), train_plain()
    for a, b, c in zip(dropin.steps, native.steps, plain.steps):
        assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-6) == pytest.approx(c.grad_norm, rel=2e-2)


def test_a_skipped_step_has_a_norm_that_is_not_finite_and_unchanged_parameters() -> None:
    steps = train_dropin(bad=2).steps
    assert not math.isfinite(steps[2].grad_norm or 0.0)
    assert steps[2].checksum == steps[1].checksum != steps[3].checksum


def test_a_fused_optimizers_skip_inside_its_kernel_is_seen() -> None:
    model, _ = build()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cpu")
    with Recorder() as recorder:
        for step in range(3):
            scaler.scale(loss_of(model, DATA[0][0], step, 1)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert [s.skipped for s in recorder.record.steps] == [False, True, False]
    assert recorder.record.steps[0].grad_norm is not None and recorder.record.steps[0].grad_norm < 100


def test_several_optimizers_are_told_apart() -> None:
    model, first = build()
    second = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder() as recorder:
        model(DATA[0][0]).sum().backward()
        for optimizer in (first, second, first):
            optimizer.step()
    assert [s.optimizer for s in recorder.record.steps] == [0, 1, 0]
    assert [len(s.losses) for s in recorder.record.steps] == [1, 0, 0]


def test_evaluation_and_gradient_penalties_are_no_backward() -> None:
    model, optimizer = build()
    x = DATA[0][0].clone().requires_grad_()
    with Recorder() as recorder:
        with torch.no_grad():
            model(x)
        (penalty,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        penalty.pow(2).sum().backward()
        optimizer.step()
    (step,) = recorder.record.steps
    assert len(step.losses) == len(step.sequences) == 1


def test_after_recording_torch_is_as_before() -> None:
    scaler_class = torch.amp.GradScaler
    before = {name: vars(scaler_class)[name] for name in ("scale", "step", "unscale_", "update")}
    train_native()
    assert {name: vars(scaler_class)[name] for name in before} == before
    optimizer = build()[1]
    assert not optimizer._optimizer_step_pre_hooks


def test_a_record_survives_being_written_and_read(tmp_path: Path) -> None:
    record = train_dropin(bad=2, parts=2)
    path = tmp_path / "run.json"
    record.write(str(path))
    assert repr(Record.read(str(path))) == repr(record)  # NaN isn't equal to itself


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match="no record"):
        Record.read(str(path))


def test_run_writes_a_record_also_of_a_program_that_fails(tmp_path: Path) -> None:
    for text, code in (("", 0), ("raise ValueError", 1)):
        program, record = tmp_path / "program.py", tmp_path / "run.json"
        program.write_text(
            "import torch\nw = torch.nn.Parameter(torch.ones(2))\no = torch.optim.SGD([w], lr=0.1)\n"
            f"w.sum().backward()\no.step()\n{text}\n",
            encoding="utf-8",
        )
        assert run_program(tmp_path, "--record", str(record), str(program)).code == code
        assert len(json.loads(record.read_text())["steps"]) == 1


@pytest.mark.fast
def test_a_legacy_program_can_be_recorded(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    outcome = run_program(tmp_path, "--record", str(path), str(PROGRAMS / "overflow_recovery.py"))
    assert outcome.code == 0, outcome.err
    record = Record.read(str(path))
    assert sum(s.skipped for s in record.steps) == outcome.out.count("Gradient overflow.")
    assert record.steps[-1].losses and record.steps[-1].scale


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int64, torch.complex128])
def test_the_checksum_sees_every_single_bit(dtype: torch.dtype) -> None:
    tensors = [torch.arange(12).to(dtype).reshape(3, 4), torch.ones(5).to(dtype)]
    before = bit_checksum(tensors)
    assert before == bit_checksum([t.clone() for t in tensors])
    tensors[1][4] = 2
    assert before != bit_checksum(tensors)
    assert bit_checksum([tensors[0].t()]) != bit_checksum([tensors[0]])


def test_the_gradient_norm_of_nothing_is_none() -> None:
    assert gradient_norm(build()[1]) is None
