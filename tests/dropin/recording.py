"""Run scenarios in children (amp keeps global state), compare traces, and record new ones from the real Apex::

    PYTHONPATH=path/to/apex:. python -m dropin.recording     # in tests/: writes more_traces.json

The real Apex must be one that runs on a CPU (its last release with ``apex.amp``, ``is_cuda`` checks taken out).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import math
import os
import traceback
import warnings
from pathlib import Path
from typing import Any, Callable, Iterator

import torch

with contextlib.suppress(ImportError):  # optimizers import it on first use: once here, not once in each child
    import torch._dynamo

HERE = Path(__file__).parent
#: their values are compared exactly
EXACT = ("scales", "loss_scale", "unskipped", "dtype")


def in_child(function: Callable[[], Any]) -> Any:
    """What ``function`` returns in a forked child, through JSON; its traceback as an AssertionError if it raises."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        with os.fdopen(write, "w") as pipe:
            json.dump(_outcome(function), pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    outcome = json.loads(text or '{"error": "the child died"}')
    if "error" in outcome:
        raise AssertionError(outcome["error"])
    return outcome["result"]


def _outcome(function: Callable[[], Any]) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return {"result": json.loads(json.dumps(function()))}
    except BaseException:
        return {"error": traceback.format_exc()}


def differences(expected: Any, found: Any, tolerance: tuple[float, float], path: str = "") -> Iterator[str]:
    """Yield a line for each place where the two traces differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted(set(expected) | set(found)):
            if key not in expected or key not in found:
                yield f"{path}.{key}: only on one side"
            else:
                inner = (0.0, 0.0) if key in EXACT else tolerance
                yield from differences(expected[key], found[key], inner, f"{path}.{key}")
    elif isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            yield f"{path}: {len(expected)} entries expected, {len(found)} found"
        for i, (e, f) in enumerate(zip(expected, found)):
            yield from differences(e, f, tolerance, f"{path}[{i}]")
    elif isinstance(expected, float) and isinstance(found, (int, float)) and not isinstance(found, bool):
        rtol, atol = tolerance
        both_nan = math.isnan(expected) and math.isnan(found)
        if not (both_nan or expected == found or abs(expected - found) <= atol + rtol * abs(expected)):
            yield f"{path}: expected {expected!r}, found {found!r}"
    elif expected != found:
        yield f"{path}: expected {expected!r}, found {found!r}"


def thin(trace: Any) -> Any:
    """Three numbers of each tensor, rounded to float32's digits: enough to see a difference, and small on disk."""
    if isinstance(trace, dict):
        return {k: v if k in EXACT else thin(v) for k, v in trace.items()}
    if isinstance(trace, list):
        if len(trace) > 3 and all(isinstance(v, float) for v in trace):
            trace = [trace[0], trace[len(trace) // 2], trace[-1]]
        return [thin(v) for v in trace]
    return float(f"{trace:.7g}") if isinstance(trace, float) else trace


def main() -> None:
    from .more_scenarios import SCENARIOS

    with contextlib.redirect_stdout(io.StringIO()):
        real = importlib.import_module("apex.amp")
    assert not hasattr(real, "_patches"), "that is the drop-in"
    traces = {name: thin(in_child(lambda run=run: run(real))) for name, run in SCENARIOS.items()}
    lines = (f"{json.dumps(name)}: {json.dumps(trace, separators=(',', ':'))}" for name, trace in traces.items())
    (HERE / "more_traces.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
