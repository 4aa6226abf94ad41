"""What a training run did, optimizer step by optimizer step: on the drop-in, on native AMP, or in plain float32.

One recorder for all of them, so that two records can be compared: ``with Recorder() as r: train()``, then
``r.record``. ``python -m amp_migrate.run --record FILE`` writes one.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import tempfile
from dataclasses import asdict, dataclass
from typing import Any, Callable, Sequence

import torch
from torch import Tensor
from torch.autograd import Variable

FORMAT = "amp_migrate.record/1"


class CannotRecord(ValueError):
    """This torch lacks what the recorder stands on; the message names both versions."""


@dataclass(frozen=True)
class StepRecord:
    """One call of an optimizer's step, or one that was skipped for an overflow.

    Args:
        optimizer: number of the optimizer, in the order of their first steps.
        losses: the loss of every backward since the last step, without its scale.
        scale: the loss scale of the last of them; None without one.
        skipped: whether the parameters were left alone.
        grad_norm: L2 norm of the optimizer's unscaled gradients, in float64; None without gradients.
        checksum: 16 hex digits over the bits of the optimizer's parameters after the step.
        parameter_sum: the sum of these parameters, in float64.
        sequences: for every backward since the last step, the number of its operation sequence.
    """

    optimizer: int
    losses: tuple[float, ...]
    scale: float | None
    skipped: bool
    grad_norm: float | None
    checksum: str
    parameter_sum: float
    sequences: tuple[int, ...]


@dataclass(frozen=True)
class Record:
    """A run: its steps, and the operations that led to each backward.

    Args:
        steps: see :class:`StepRecord`.
        operations: texts such as "aten.mm(float16,float16) on": name, input dtypes, autocast on or off.
        sequences: distinct sequences of indices into ``operations``; steps refer to them by number.
        torch: torch's version.
    """

    steps: tuple[StepRecord, ...]
    operations: tuple[str, ...]
    sequences: tuple[tuple[int, ...], ...]
    torch: str

    def write(self, path: str) -> None:
        """Write as JSON, atomically. Infinities and NaN are written as Python's json does."""
        folder = os.path.dirname(os.path.abspath(path))
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8") as file:
            json.dump({"format": FORMAT, **asdict(self)}, file)
        os.replace(file.name, path)

    @staticmethod
    def read(path: str) -> Record:
        """Read what :meth:`write` wrote.

        Raises:
            ValueError: if the file is no record.
        """
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(f"{path} is no record of amp_migrate ({FORMAT}).")
        steps = tuple(
            StepRecord(**{**s, "losses": tuple(s["losses"]), "sequences": tuple(s["sequences"])}) for s in data["steps"]
        )
        return Record(steps, tuple(data["operations"]), tuple(map(tuple, data["sequences"])), data["torch"])


def path_for_this_process(path: str) -> str:
    """``path``, with the rank in its name if several processes train together (``run.json`` → ``run.rank1.json``)."""
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        return path
    stem, suffix = os.path.splitext(path)
    return f"{stem}.rank{os.environ.get('RANK', '0')}{suffix}"


class Recorder:
    """Records from :meth:`start` to :meth:`stop`, or as a context manager.

    Raises:
        CannotRecord: on a torch before 2.0.
    """

    def __init__(self) -> None:
        if not hasattr(_step_hooks(), "register_optimizer_step_pre_hook"):
            raise CannotRecord(f"recording needs torch 2.0 or newer; this is {torch.__version__}.")
        from .operation_trace import OperationTrace  # needs what the check above found

        self._trace = OperationTrace()
        self._steps: list[StepRecord] = []
        self._optimizers: list[Any] = []
        self._losses: list[float] = []
        self._scaled_loss: float | None = None
        self._scale: float | None = None
        self._grad_norm: float | None = None
        self._skips_in_kernel = False
        self._undo: list[Callable[[], None]] = []
        self._started = False

    def __enter__(self) -> Recorder:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def record(self) -> Record:
        """What was recorded so far."""
        return Record(tuple(self._steps), self._trace.operations, self._trace.sequences, str(torch.__version__))

    def start(self) -> None:
        """Begin to listen."""
        self._started = True
        self._listen_to_backward()
        for scaler_class in _scaler_classes():
            self._listen_to_scaler(scaler_class)
        self._listen_to_steps()
        self._listen_to_dropin()
        self._trace.start()

    def stop(self) -> None:
        """Stop listening and take every hook back."""
        self._trace.stop()
        while self._undo:
            self._undo.pop()()
        self._started = False

    def _listen_to_backward(self) -> None:
        variable: Any = Variable
        variable._execution_engine = _ListeningEngine(Variable._execution_engine, self)

    def on_backward(self, roots: Sequence[Tensor]) -> None:
        """A backward starts that accumulates gradients."""
        if not self._started:
            return
        with self._trace.paused():
            loss = self._scaled_loss
            if loss is None:
                loss = float(sum(r.detach().double().sum().item() for r in roots))
            self._losses.append(loss)
            self._scaled_loss = None
        self._trace.end_sequence()

    def _listen_to_scaler(self, scaler_class: Any) -> None:
        scale, step = scaler_class.scale, scaler_class.step

        def listening_scale(scaler: Any, outputs: Any) -> Any:
            with self._trace.paused():
                result = scale(scaler, outputs)
                if isinstance(outputs, Tensor) and scaler.is_enabled():
                    self._scaled_loss = float(outputs.detach().double().sum().item())
                    self._scale = float(scaler.get_scale())
            return result

        def listening_step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = len(self._steps)
            with self._trace.paused():
                result = step(scaler, optimizer, *args, **kwargs)
            if len(self._steps) == before:
                self._add_skipped(optimizer)
            return result

        self._replace(scaler_class, "scale", listening_scale)
        self._replace(scaler_class, "step", listening_step)
        for name in ("unscale_", "update"):
            self._replace(scaler_class, name, self._quietly(getattr(scaler_class, name)))

    def _quietly(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def quiet(*args: Any, **kwargs: Any) -> Any:
            with self._trace.paused():
                return method(*args, **kwargs)

        return quiet

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        before = vars(owner)[name]
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before))

    def _listen_to_steps(self) -> None:
        hooks = _step_hooks()
        for handle in (
            hooks.register_optimizer_step_pre_hook(self._before_step),
            hooks.register_optimizer_step_post_hook(self._after_step),
        ):
            self._undo.append(handle.remove)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        with self._trace.paused():
            grad_scale, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
            self._grad_norm = gradient_norm(optimizer)
            if self._grad_norm is not None and grad_scale is not None:
                self._grad_norm /= float(grad_scale)
            self._skips_in_kernel = found_inf is not None and float(found_inf) > 0

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._add(optimizer, self._skips_in_kernel, self._grad_norm)

    def _listen_to_dropin(self) -> None:
        from .apex.amp._amp_state import _amp_state

        listener: Callable[[Any, float], None] = lambda optimizer, scale: self._add_skipped(optimizer)  # noqa: E731
        _amp_state.skip_listeners.append(listener)
        self._undo.append(lambda: _amp_state.skip_listeners.remove(listener))

    def _add_skipped(self, optimizer: Any) -> None:
        with self._trace.paused():
            norm = gradient_norm(optimizer)
        self._add(optimizer, True, norm)

    def _add(self, optimizer: Any, skipped: bool, grad_norm: float | None) -> None:
        with self._trace.paused():
            params = [p for group in optimizer.param_groups for p in group["params"]]
            total = float(sum(p.detach().double().sum().item() for p in params))
            checksum = bit_checksum(params)
        step = StepRecord(
            self._number(optimizer), tuple(self._losses), self._scale, skipped, grad_norm, checksum, total,
            self._trace.take_sequences(),
        )  # fmt: skip
        self._steps.append(step)
        self._losses, self._scale = [], None

    def _number(self, optimizer: Any) -> int:
        for number, known in enumerate(self._optimizers):
            if known is optimizer:
                return number
        self._optimizers.append(optimizer)
        return len(self._optimizers) - 1


def _step_hooks() -> Any:
    """The module of torch's hooks around every optimizer's step (torch 2.0)."""
    return importlib.import_module("torch.optim.optimizer")


class _ListeningEngine:
    """Torch's autograd engine, with a listener. Stays in place after the recording, and then only passes on."""

    def __init__(self, engine: Any, recorder: Recorder) -> None:
        self._engine = engine
        self._recorder = recorder

    def run_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("accumulate_grad", True):
            self._recorder.on_backward(tensors)
        with self._recorder._trace.paused():
            return self._engine.run_backward(tensors, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def _scaler_classes() -> list[Any]:
    """The classes that define ``scale`` and ``step``: torch's GradScaler, and the drop-in's stand-in."""
    from .apex.amp._standin_scaler import StandInGradScaler

    native: Any = torch.amp.GradScaler if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler
    return [native, StandInGradScaler]


def gradient_norm(optimizer: Any) -> float | None:
    """L2 norm over all gradients of ``optimizer``, in float64; None if there are none."""
    grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if not grads:
        return None
    return math.sqrt(sum(float(g.detach().to_dense().double().pow(2).sum()) for g in grads))


def bit_checksum(tensors: Sequence[Tensor]) -> str:
    """16 hex digits over the bits of ``tensors``, in order: equal for bitwise equal tensors."""
    total = 0
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[min(flat.element_size(), 8)]
        bits = flat.view(integer).to(torch.int64)
        weights = torch.arange(1, 2 * bits.numel(), 2, dtype=torch.int64) * 0x9E3779B1
        total = (total * 0x100000001B3 + int((bits * weights).sum()) + bits.numel()) & 0xFFFFFFFFFFFFFFFF
    return f"{total:016x}"
