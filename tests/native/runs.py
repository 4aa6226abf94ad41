"""Run a program in a process of its own and keep what it did: a record, every parameter after every step, the output.

A run can be disturbed, to see what happens at an overflow: the gradient of one backward is made infinite, or the loss
scale starts so high, and grows so often, that float16 overflows by itself.
"""

from __future__ import annotations

import ast
import functools
import inspect
import multiprocessing
import os
import sys
import tempfile
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any, Callable, Sequence

from amp_migrate.codemods.target import Target
from amp_migrate.rewrite import Finding, Outcome, Settings, rewrite_paths, rewrite_source

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "fixtures" / "programs"
#: what every program here is rewritten to
NATIVE = Settings(Target(to="native", device_type="cpu"))


@dataclass(frozen=True)
class Disturbance:
    """What makes a run overflow.

    Args:
        backward: number of the backward, from 0, whose gradient gets an infinity; -1 for none.
        optimizer: number of the optimizer whose parameter gets it, in the order in which the program made them.
        init_scale: the loss scale to begin with, where the program doesn't say.
        growth_interval: after how many good steps the scale doubles.
    """

    backward: int = -1
    optimizer: int = 0
    init_scale: float = 2.0**16
    growth_interval: int = 2000

    def __str__(self) -> str:
        if self.backward >= 0:
            return f"inf in backward {self.backward} for optimizer {self.optimizer}"
        return f"scale from 2**{self.init_scale.hex().split('p')[1]}, doubled after {self.growth_interval}"


UNDISTURBED = Disturbance()
#: high enough for float16 gradients to overflow in the first steps, and again each time the scale has grown back
OVERFLOWING = Disturbance(init_scale=2.0**27, growth_interval=3)


@dataclass(frozen=True)
class Step:
    """One optimizer step, or one that was skipped; like :class:`amp_migrate.record.StepRecord`, with the parameters."""

    optimizer: int
    skipped: bool
    scale: float | None
    checksum: str
    backwards: int
    parameters: Any = field(repr=False, default=None)


@dataclass(frozen=True)
class Run:
    """What a run left.

    Args:
        code: the exit code.
        steps: all optimizer steps.
        start: for each optimizer, its parameters before its first step.
        traces: the operations that led to each backward, as texts.
        reached: for each backward, the numbers of the optimizers whose parameters it reaches, in the order of creation.
        scaled: for each backward, whether its loss was scaled.
    """

    code: int
    out: str
    err: str
    steps: tuple[Step, ...] = ()
    start: dict[int, Any] = field(default_factory=dict, repr=False)
    traces: tuple[tuple[str, ...], ...] = field(default=(), repr=False)
    reached: tuple[tuple[int, ...], ...] = ()
    scaled: tuple[bool, ...] = ()

    @property
    def final(self) -> str:
        """The last line that was printed."""
        return (self.out.splitlines() or [""])[-1]


@dataclass(frozen=True)
class Rewritten:
    """A program after its rewrite: where to start it, and what was said about it."""

    main: Path
    sources: dict[str, str]
    findings: tuple[Finding, ...]

    @property
    def is_native(self) -> bool:
        """Whether nothing of it is left on Apex's ``amp`` or the drop-in's."""
        return not any(uses_apex_amp(source) for source in self.sources.values())


def uses_apex_amp(source: str) -> bool:
    """Whether ``source`` imports Apex's amp, or FP16_Optimizer before it, or the drop-in's, under whatever name."""
    packages = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            module = _as_apex(node.module or "")
            if module.startswith(("apex.amp", "apex.fp16_utils")) or (
                module == "apex" and any(a.name in ("amp", "*") for a in node.names)
            ):
                return True
        elif isinstance(node, ast.Import):
            if any(_as_apex(alias.name).startswith("apex.amp") for alias in node.names):
                return True
            packages |= {alias.asname or "apex" for alias in node.names if _as_apex(alias.name) == "apex"}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _as_apex(node.value) == "apex.amp":
            return True
    amps = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute) and node.attr == "amp")
    return any(isinstance(node.value, ast.Name) and node.value.id in packages for node in amps)


def _as_apex(module: str) -> str:
    return module.replace("amp_migrate.apex", "apex", 1)


def program_paths() -> list[Path]:
    """Every legacy program: single files, and ``main.py`` of folders."""
    return sorted([*PROGRAMS.glob("*.py"), *PROGRAMS.glob("*/main.py")])


def program_name(path: Path) -> str:
    """``plain_loop``, or ``hierarchy`` for a folder."""
    return path.parent.name if path.name == "main.py" else path.stem


def rewrite_program(main: Path, folder: Path, settings: Settings = NATIVE) -> Rewritten:
    """Write the rewrite of a program into ``folder``, the whole folder of it where it has one."""
    if main.name != "main.py":
        result = rewrite_source(main.read_bytes(), settings)
        if result.outcome in (Outcome.FAILED, Outcome.SKIPPED):
            raise ValueError(f"{main}: {result.outcome.value}: {result.reason}")
        target = folder / main.name
        target.write_bytes(result.source)
        return Rewritten(target, {main.name: result.source.decode()}, result.findings)
    for path in main.parent.glob("*.py"):
        (folder / path.name).write_bytes(path.read_bytes())
    report = rewrite_paths([str(folder)], settings)
    findings = tuple(finding for each in report.results for finding in each.result.findings)
    sources = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.py")}
    return Rewritten(folder / "main.py", sources, findings)


@functools.lru_cache(maxsize=None)
def _context() -> Any:
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "amp_migrate.run", "amp_migrate.apex.amp", "amp_migrate.record"])
    return context


class _Started:
    """A run in a process of its own. Its files go into a new folder below ``folder``."""

    def __init__(
        self, main: Path, folder: Path, disturbance: Disturbance = UNDISTURBED, arguments: Sequence[str] = ()
    ) -> None:
        own = Path(tempfile.mkdtemp(dir=folder))
        self.out, self.err, self.left = own / "stdout.txt", own / "stderr.txt", own / "run.pt"
        job = (str(self.out), str(self.err), str(self.left), [str(main), *arguments], disturbance)
        self.process = _context().Process(target=_child, args=job)
        self.process.start()

    def finish(self, timeout: float = 120) -> Run:
        import torch

        self.process.join(timeout)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        known: dict[str, Any] = torch.load(self.left, weights_only=False) if self.left.exists() else {}
        return Run(self.process.exitcode, _text(self.out), _text(self.err), **known)


def run(main: Path, folder: Path, disturbance: Disturbance = UNDISTURBED) -> Run:
    """Run ``main`` with ``import apex`` on the drop-in, whatever of it there may be."""
    return _Started(main, folder, disturbance).finish()


def run_all(jobs: Sequence[tuple[Any, ...]]) -> list[Run]:
    """Several runs, two at a time. A job is (main, folder), a disturbance and the program's arguments if it has any."""
    running: dict[int, _Started] = {}
    done: dict[int, Run] = {}
    for number, job in enumerate(jobs):
        if len(running) == 2:
            connection.wait([each.process.sentinel for each in running.values()], timeout=120)
            ready = next((n for n, each in running.items() if not each.process.is_alive()), min(running))
            done[ready] = running.pop(ready).finish()
        running[number] = _Started(*job)
    done.update({number: each.finish() for number, each in running.items()})
    return [done[number] for number in range(len(jobs))]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _child(out: str, err: str, left: str, command: list[str], disturbance: Disturbance) -> None:
    for path, stream in ((out, sys.stdout), (err, sys.stderr)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, stream.fileno())
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import traceback

    import torch

    torch.set_num_threads(1)
    code = 1
    try:
        code = _run_recorded(command, left, disturbance)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run_recorded(command: list[str], left: str, disturbance: Disturbance) -> int:
    import torch

    from amp_migrate import record as record_module
    from amp_migrate import run as run_module
    from amp_migrate.record import Recorder

    recorders: list[Any] = []

    class ParameterRecorder(Recorder):
        """Also keeps the parameters themselves."""

        def __init__(self) -> None:
            super().__init__()
            self.start_of: dict[int, Any] = {}
            self.parameters: list[Any] = []
            recorders.append(self)

        def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
            self.remember_start(optimizer)
            super()._before_step(optimizer, args, kwargs)

        def _add(self, optimizer: Any, skipped: bool, grad_norm: float | None) -> None:
            self.remember_start(optimizer)
            super()._add(optimizer, skipped, grad_norm)
            self.parameters.append(self.flat(optimizer))

        def remember_start(self, optimizer: Any) -> None:
            number = self._number(optimizer)
            if number not in self.start_of:
                self.start_of[number] = self.flat(optimizer)

        def flat(self, optimizer: Any) -> Any:
            with self._trace.paused():
                params = [p for group in optimizer.param_groups for p in group["params"]]
                return torch.cat([p.detach().double().reshape(-1) for p in params])

    record_module.Recorder = ParameterRecorder  # type: ignore[misc]
    _silence_amp()
    _set_scales(disturbance)
    backwards = _disturb_backward(disturbance, lambda: recorders[0]._scaled_loss is not None)
    code = 1
    try:
        code = run_module.main(["--record", left + ".json", *command])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1 if error.code else 0
    finally:
        if recorders:
            torch.save(_left_of(recorders[0], backwards), left)
    return code


def _left_of(recorder: Any, backwards: list[tuple[tuple[int, ...], bool]]) -> dict[str, Any]:
    record = recorder.record
    steps = tuple(
        Step(s.optimizer, s.skipped, s.scale, s.checksum, len(s.losses), p)
        for s, p in zip(record.steps, recorder.parameters)
    )
    numbers = [number for step in record.steps for number in step.sequences]
    traces = tuple(tuple(record.operations[i] for i in record.sequences[number]) for number in numbers)
    reached, scaled = tuple(each for each, _ in backwards), tuple(each for _, each in backwards)
    return {"steps": steps, "start": recorder.start_of, "traces": traces, "reached": reached, "scaled": scaled}


def _silence_amp() -> None:
    """Amp's own messages aren't the program's output."""
    from amp_migrate.apex.amp._amp_state import AmpState

    state: Any = AmpState
    state.verbosity = property(lambda self: 0, lambda self, value: None)


def _set_scales(disturbance: Disturbance) -> None:
    """Other defaults for the loss scale. The drop-in's ceiling, which native scalers don't have, goes."""
    if disturbance.init_scale == UNDISTURBED.init_scale and disturbance.growth_interval == UNDISTURBED.growth_interval:
        return
    import torch

    from amp_migrate.apex.amp.scaler import LossScaler

    def with_defaults(function: Callable[..., None], **new: Any) -> Callable[..., None]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def init(*args: Any, **kwargs: Any) -> None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            for name, value in new.items():
                if bound.arguments[name] == signature.parameters[name].default:
                    bound.arguments[name] = value
            function(*bound.args, **bound.kwargs)

        return init

    scale, interval = disturbance.init_scale, disturbance.growth_interval
    dropin: Any = LossScaler
    dropin.__init__ = with_defaults(dropin.__init__, init_scale=scale, scale_window=interval, max_loss_scale=2.0**100)
    native: Any = torch.amp.GradScaler
    native.__init__ = with_defaults(native.__init__, init_scale=scale, growth_interval=interval)


def _disturb_backward(disturbance: Disturbance, is_scaled: Callable[[], bool]) -> list[tuple[tuple[int, ...], bool]]:
    """Listen to every backward, and disturb one. The list fills with what each one reaches, and if it was scaled."""
    import torch

    owners = _number_optimizers()
    seen: list[tuple[tuple[int, ...], bool]] = []
    backward = torch.autograd.backward
    depth = 0

    def listening(tensors: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal depth
        if depth == 0:
            roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            leaves = [leaf for leaf in _leaves(roots) if id(leaf) in owners]
            numbers = sorted({number for leaf in leaves for number in owners[id(leaf)]})
            if len(seen) == disturbance.backward:
                _make_infinite([leaf for leaf in leaves if disturbance.optimizer in owners[id(leaf)]])
            seen.append((tuple(numbers), is_scaled()))
        depth += 1
        try:
            backward(tensors, *args, **kwargs)
        finally:
            depth -= 1

    torch.autograd.backward = listening
    return seen


def _number_optimizers() -> dict[int, set[int]]:
    """For each parameter, by id, the optimizers that got it. The dict fills as the program makes optimizers."""
    import torch

    owners: dict[int, set[int]] = {}
    numbers: dict[int, int] = {}
    keep: list[Any] = []
    optimizer_class: Any = torch.optim.Optimizer
    add = optimizer_class.add_param_group

    def listening(self: Any, group: Any) -> None:
        add(self, group)
        number = numbers.setdefault(id(self), len(numbers))
        for parameter in self.param_groups[-1]["params"]:
            owners.setdefault(id(parameter), set()).add(number)
            keep.append((self, parameter))

    optimizer_class.add_param_group = listening
    return owners


def _leaves(roots: list[Any]) -> list[Any]:
    """The leaves that a backward from ``roots`` reaches, in a fixed order."""
    found, seen, todo = [], set(), [root.grad_fn for root in roots if root.grad_fn is not None]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        todo.extend(next_node for next_node, _ in node.next_functions if next_node is not None)
    return found


def _make_infinite(leaves: list[Any]) -> None:
    """The next gradient of one of ``leaves`` gets an infinity."""
    if not leaves:
        return
    leaf = leaves[-1]

    def hook(grad: Any) -> Any:
        handle.remove()
        grad = grad.clone()
        grad.view(-1)[0] = float("inf")
        return grad

    handle = leaf.register_hook(hook)
