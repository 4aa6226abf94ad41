"""Whether two runs trained the same: bitwise, or within rounding where the rewrite says that it differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

from expected import Expected
from runs import Run

#: ‖Δp − Δp′‖ / ‖Δp‖ up to which two runs count as the same where they needn't agree bitwise (SOUNDNESS)
TOLERANCE = 1e-2


@dataclass(frozen=True)
class Comparison:
    """How two runs differ. Each text is empty where they don't.

    Args:
        crash: one of them failed.
        shape: other optimizers stepped, or more often.
        skips: other steps were skipped.
        bits: the first step after which the parameters differ.
        gap: the largest ‖Δp − Δp′‖ / ‖Δp‖ after any step; 0.0 if bitwise equal.
        scales: the loss scale differs.
        traces: the operations that led to a backward differ.
        kernels: those among them differ whose precision autocast decides.
        output: what was printed differs.
    """

    crash: str = ""
    shape: str = ""
    skips: str = ""
    bits: str = ""
    gap: float = 0.0
    scales: str = ""
    traces: str = ""
    kernels: str = ""
    output: str = ""

    @property
    def is_bitwise(self) -> bool:
        """Nothing differs."""
        return not any((self.crash, self.shape, self.skips, self.bits, self.scales, self.traces, self.output))

    def agrees(self, expected: Expected, accumulates: bool) -> bool:
        """Whether a rewrite reaches what is asked of it.

        Args:
            expected: says which of bits, traces and output must be the same.
            accumulates: several backwards lead to a step. Then the scale may differ: Apex counts each of them.
        """
        if self.crash or self.shape or self.skips or (self.scales and not accumulates):
            return False
        if self.kernels or (self.traces and expected.same_traces):
            return False
        if expected.bitwise:
            return not self.bits and not (expected.same_output and self.output)
        return self.gap <= TOLERANCE

    def __str__(self) -> str:
        if self.is_bitwise:
            return "bitwise the same"
        parts = [self.crash, self.shape, self.skips, self.bits, self.scales, self.traces, self.output]
        text = "; ".join(part for part in parts if part)
        return f"{text} (gap {self.gap:.1e})" if self.bits else text


def compare(expected: Run, found: Run) -> Comparison:
    """How ``found`` differs from ``expected``."""
    if expected.code or found.code:
        return Comparison(crash=f"exit codes {expected.code} and {found.code}: {_last(expected)} and {_last(found)}")
    shape = _shape(expected, found)
    if shape:
        return Comparison(shape=shape)
    return Comparison(
        skips=_first(expected, found, "skipped"),
        bits=_first(expected, found, "checksum"),
        gap=_gap(expected, found),
        scales=_first(expected, found, "scale"),
        traces=_traces(expected, found, _relevant),
        kernels=_traces(expected, found, _kernels),
        output=_output(expected, found),
    )


def _last(run: Run) -> str:
    return (run.err.strip().splitlines() or [f"exit code {run.code}"])[-1][:200]


def _shape(expected: Run, found: Run) -> str:
    a, b = ([(step.optimizer, step.backwards) for step in run.steps] for run in (expected, found))
    if a == b:
        return ""
    if len(a) != len(b):
        return f"{len(a)} steps and {len(b)}"
    place = next(i for i, (x, y) in enumerate(zip(a, b)) if x != y)
    return f"step {place}: (optimizer, backwards) {a[place]} and {b[place]}"


def _first(expected: Run, found: Run, name: str) -> str:
    for place, (a, b) in enumerate(zip(expected.steps, found.steps)):
        x, y = getattr(a, name), getattr(b, name)
        if x != y:
            return f"{name} differs from step {place} (optimizer {a.optimizer}) on: {x} and {y}"
    return ""


def _gap(expected: Run, found: Run) -> float:
    """The way of each optimizer's parameters, compared after its every step."""
    largest = 0.0
    for a, b in zip(expected.steps, found.steps):
        start = expected.start[a.optimizer]
        if a.parameters.shape != b.parameters.shape:
            return float("inf")
        if a.parameters.shape != start.shape:  # the optimizer got another group of parameters
            start = start.new_zeros(a.parameters.shape)
        way = float((a.parameters - start).norm())
        off = float((a.parameters - b.parameters).norm())
        if off:
            largest = max(largest, off / way if way else float("inf"))
        elif off != off:
            return float("inf")
    return largest


#: kernels whose precision autocast decides; for the rest, the dtypes of the inputs say all
_CAST = {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "linear", "convolution", "mkldnn_convolution", "mkldnn_linear"}


def _traces(expected: Run, found: Run, of: Callable[[tuple[str, ...]], list[str]]) -> str:
    if len(expected.traces) != len(found.traces):
        return f"{len(expected.traces)} backwards and {len(found.traces)}"
    for place, (a, b) in enumerate(zip(expected.traces, found.traces)):
        x, y = of(a), of(b)
        if x != y:
            number = next((i for i, (p, q) in enumerate(zip(x, y)) if p != q), min(len(x), len(y)))
            p, q = (each[number] if number < len(each) else "nothing" for each in (x, y))
            return f"operations before backward {place} differ: {p} and {q}"
    return ""


def _kernels(trace: tuple[str, ...]) -> list[str]:
    return [text for text in trace if _name(text) in _CAST]


def _name(text: str) -> str:
    return text.split("(", 1)[0].rpartition(".")[2]


def _relevant(trace: tuple[str, ...]) -> list[str]:
    """Without casts (what they feed shows its dtypes); on/off only where a kernel's precision depends on it."""
    kept = []
    for text in trace:
        name = _name(text)
        if name == "_to_copy":
            continue
        kept.append(text if name in _CAST else text.rpartition(" ")[0])
    return kept


def _output(expected: Run, found: Run) -> str:
    a, b = expected.out.splitlines(), found.out.splitlines()
    if a == b:
        return ""
    place = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    x, y = (lines[place] if place < len(lines) else "nothing" for lines in (a, b))
    return f"printed line {place + 1} differs: {x!r} and {y!r}"
