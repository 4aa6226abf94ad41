"""Where a program is made to overflow: in each optimizer and each micro-batch in turn, and naturally."""

from __future__ import annotations

from pathlib import Path

from comparing import Comparison, compare
from expected import Expected
from runs import OVERFLOWING, Disturbance, Run, run_all


def disturbances(undisturbed: Run, expected: Expected) -> list[Disturbance]:
    """An infinity in every kind of backward of this program, for every optimizer that it reaches; then a high scale.

    Only scaled backwards count: Apex didn't look at the others' gradients.
    A kind is the optimizer that steps next, how many backwards lead to its step, and which of them this is. The second
    of a kind is taken where there is one: by then every state that comes into being lazily is there.
    """
    kinds: dict[tuple[int, int, int], list[int]] = {}
    backward = 0
    for step in undisturbed.steps:
        for place in range(step.backwards):
            kinds.setdefault((step.optimizer, step.backwards, place), []).append(backward)
            backward += 1
    chosen = sorted({(numbers + numbers[-1:])[1] for numbers in kinds.values()})
    scaled = [number for number in chosen if undisturbed.scaled[number] and number not in expected.spared]
    spikes = [Disturbance(number, optimizer) for number in scaled for optimizer in undisturbed.reached[number]]
    return [*spikes, OVERFLOWING]


def accumulates(undisturbed: Run) -> bool:
    """Whether several backwards lead to one step: then a natural overflow counts differently (SOUNDNESS 17)."""
    return any(step.backwards > 1 for step in undisturbed.steps)


def disagreements(main: Path, rewritten: Path, folder: Path, expected: Expected, undisturbed: Run) -> list[str]:
    """What goes wrong at an overflow: for each disturbance at which the two don't train the same, what differs."""
    wrong = []
    for disturbance, found in compared(main, rewritten, folder, expected, undisturbed):
        if disturbance == OVERFLOWING and (accumulates(undisturbed) or not expected.bitwise):
            agrees = not found.crash and not found.shape  # rounding may decide what overflows
        else:
            agrees = found.agrees(expected, accumulates(undisturbed))
        if not agrees:
            wrong.append(f"{disturbance}: {found}")
    return wrong


def compared(
    main: Path, rewritten: Path, folder: Path, expected: Expected, undisturbed: Run
) -> list[tuple[Disturbance, Comparison]]:
    """Both runs at each disturbance, compared."""
    found = []
    for disturbance in disturbances(undisturbed, expected):
        first, second = run_all([(main, folder, disturbance), (rewritten, folder, disturbance)])
        found.append((disturbance, compare(first, second)))
    return found
