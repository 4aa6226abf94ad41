"""The drop-in does what real Apex was recorded doing: scales, skips, dtypes and errors exactly, numbers closely."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import amp_migrate.apex.amp as amp

from . import float16_runs, more_scenarios, scenarios
from .recording import differences, in_child, thin

HERE = Path(__file__).parent
RECORDED = json.loads((HERE / "traces.json").read_text(encoding="utf-8"))
MORE = json.loads((HERE / "more_traces.json").read_text(encoding="utf-8"))


#: scenarios that compute in float16 themselves, or use what torch 1.6 lacks
ON_NEWER_TORCH = (
    "O2_new_group_after_initialize", "O2_new_group_after_steps__half", "O1_functions_outside_of_models",
    "O1_zero_grad_forms",
)  # fmt: skip


def found_in_child(run: Any) -> Any:
    """The trace of a scenario; where float16 doesn't run it only has to run."""
    if run.__name__ in ON_NEWER_TORCH and not float16_runs():
        pytest.skip(f"it calls float16 operations or options that torch {torch.__version__} lacks on a CPU")
    found = in_child(lambda: run(amp))
    if run.compute == "fp16" and not float16_runs():
        pytest.skip(f"it ran; torch {torch.__version__} has no float16 on a CPU, so numbers and dtypes can't agree")
    return found


def check(run: Any, expected: Any, found: Any) -> None:
    lines = list(differences(expected, found, scenarios.TOLERANCE[run.compute]))
    assert not lines, "\n".join(lines[:10])


@pytest.mark.parametrize("name", scenarios.SCENARIOS)
def test_as_recorded(name: str) -> None:
    run = scenarios.SCENARIOS[name]
    check(run, RECORDED[name], found_in_child(run))


@pytest.mark.parametrize("name", more_scenarios.SCENARIOS)
def test_as_recorded_in_the_corners(name: str) -> None:
    run = more_scenarios.SCENARIOS[name]
    check(run, MORE[name], thin(found_in_child(run)))


def test_every_recording_is_compared() -> None:
    assert set(RECORDED) == set(scenarios.SCENARIOS)
    assert set(MORE) == set(more_scenarios.SCENARIOS)
