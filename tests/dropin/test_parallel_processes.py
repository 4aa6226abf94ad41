"""Four gloo processes train what one process trains on all samples together."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import torch

from . import parallel_ranks as ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed"),
]
WORLD_SIZE = 4
ONE = ranks.Place(0, 1)
needs_hooks = pytest.mark.skipif(not ranks.HAS_HOOKS, reason="communication hooks came with torch 1.8")


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of the four processes returned, by scenario."""
    folder = tmp_path_factory.mktemp("ranks")
    root = pathlib.Path(__file__).resolve().parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    workers = [
        subprocess.Popen(
            [sys.executable, ranks.__file__, str(rank), str(WORLD_SIZE), str(folder)],
            env=environment,
            cwd=str(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(WORLD_SIZE)
    ]
    try:
        said = [worker.communicate(timeout=240)[0].decode() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert all(worker.returncode == 0 for worker in workers), "\n".join(said)
    safe = {"weights_only": False} if hasattr(torch.serialization, "add_safe_globals") else {}
    return [torch.load(os.path.join(folder, f"{rank}.pt"), **safe) for rank in range(WORLD_SIZE)]


def by_rank(four: list[Any], scenario: Any) -> list[Any]:
    return [result[scenario.__name__] for result in four]


def furthest(actual: list[Any], expected: list[Any]) -> float:
    """The largest difference between two lists of tensors, relative to the largest value of each tensor."""
    assert len(actual) == len(expected) > 0
    result = 0.0
    for one, other in zip(actual, expected):
        assert (one is None) == (other is None)
        if one is not None and one.numel():
            size = max(float(other.double().abs().max()), 1e-6)
            result = max(result, float((one.double() - other.double()).abs().max()) / size)
    return result


def assert_all_equal(results: list[list[torch.Tensor]]) -> None:
    """Bitwise the same in all processes."""
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


def test_parameters_are_those_of_the_first_process_and_buffers_stay(four: Any) -> None:
    results = by_rank(four, ranks.wrapping)
    assert_all_equal([result["before"][:4] for result in results])
    means = [result["before"][4] for result in results]
    assert [float(mean[0]) for mean in means] == [0.0, 1.0, 2.0, 3.0]
    for rank, result in enumerate(results):  # all saw the same samples, but started elsewhere
        assert furthest([result["buffer"] - results[0]["buffer"]], [torch.full((4,), 0.9 * rank)]) < 1e-5
        assert all(key.startswith("module.") for key in result["keys"])


def test_gradients_are_averaged(four: Any) -> None:
    results = by_rank(four, ranks.plain_training)
    assert_all_equal(results)
    assert furthest(results[0], ranks.plain_training(ONE)) < 1e-6


@needs_hooks
@pytest.mark.parametrize(
    "name, factor", [("mean", 1), ("predivide", 1), ("sum", 4), ("predivided sum", 1), ("fp32", 1)]
)
def test_gradients_are_reduced_as_asked(four: Any, name: str, factor: float) -> None:
    results = [result[name] for result in by_rank(four, ranks.reductions)]
    assert_all_equal(results)
    expected = [grad * factor for grad in ranks.reductions(ONE)[name]]
    assert furthest(results[0], expected) < 1e-6


@needs_hooks
@pytest.mark.parametrize("name", ["fp32", "predivide"])
def test_half_gradients_can_be_added_up_without_overflowing(four: Any, name: str) -> None:
    for result in by_rank(four, ranks.half_gradients):
        assert torch.equal(result[name][0], torch.full((4,), 40000.0, dtype=torch.float16))


def test_delay_allreduce_lets_parameters_go_unused(four: Any) -> None:
    results = by_rank(four, ranks.delayed_with_unused)
    assert_all_equal([state for state, _ in results])
    expected, missing = ranks.delayed_with_unused(ONE)
    assert furthest(results[0][0], expected) < 1e-6
    assert results[0][1] == missing == [False] * 4 + [True] * 2


def test_parameters_that_never_get_a_gradient_need_no_option(four: Any) -> None:
    results = by_rank(four, ranks.never_used)
    assert_all_equal([state for state, _ in results])
    expected, missing = ranks.never_used(ONE)
    assert furthest(results[0][0], expected) < 1e-6
    assert results[0][1] == missing == [False] * 2 + [True] * 4


def test_syncbn_trains_as_batchnorm_on_the_joined_batch(four: Any) -> None:
    results = by_rank(four, ranks.batchnorm_training)
    assert_all_equal([result["state"] for result in results])
    expected = ranks.batchnorm_training(ONE)
    assert furthest(results[0]["state"], expected["state"]) < 1e-5
    assert furthest([results[0]["evaluated"]], [expected["evaluated"]]) < 1e-5


@pytest.mark.parametrize("layout", list(ranks.LAYOUTS))
def test_a_syncbn_layer_is_batchnorm_over_batches_of_different_sizes(four: Any, layout: str) -> None:
    results = [result[layout] for result in by_rank(four, ranks.batchnorm_layers)]
    expected = ranks.batchnorm_layers(ONE)[layout]
    joined = [torch.cat(pieces) for pieces in zip(*(result["pieces"] for result in results))]
    assert furthest(joined, expected["pieces"]) < 2e-5
    if expected["sums"]:
        summed = [sum(parts) for parts in zip(*(result["sums"] for result in results))]
        assert furthest(summed, expected["sums"]) < 2e-5
    for result in results:
        if expected["buffers"]:
            assert furthest(result["buffers"], expected["buffers"]) < 1e-6


def test_syncbn_returns_half_for_half(four: Any) -> None:
    results = by_rank(four, ranks.half_batchnorm)
    joined = [torch.cat(pieces) for pieces in zip(*(result["pieces"] for result in results))]
    assert [piece.dtype for piece in joined] == [torch.float16] * 2
    assert furthest(joined, ranks.half_batchnorm(ONE)["pieces"]) < 2e-3


def test_process_groups_keep_their_own_statistics(four: Any) -> None:
    joined = torch.cat(by_rank(four, ranks.batchnorm_in_groups))
    assert furthest([joined], [ranks.batchnorm_in_groups(ONE)]) < 1e-5


def test_group_sizes_must_divide_the_number_of_processes(four: Any) -> None:
    for nothing, errors in by_rank(four, ranks.no_groups):
        assert nothing is None
        assert ["group_size=3" in errors[0], "group_size=5" in errors[1]] == [True, True]


@pytest.mark.parametrize("level, tolerance", [("O0", 1e-6), ("O1", 2e-3), ("O2", 2e-3)])
def test_larc_trains_as_in_one_process(four: Any, level: str, tolerance: float) -> None:
    results = [result[level] for result in by_rank(four, ranks.larc)]
    assert_all_equal(results)
    assert furthest(results[0], ranks.larc(ONE)[level]) < tolerance


def test_an_overflow_in_one_process_skips_the_step_in_all(four: Any) -> None:
    results = by_rank(four, ranks.overflow_in_one)
    expected = ranks.overflow_in_one(ONE)
    assert_all_equal([result["state"] for result in results])
    for result in results:
        assert result["history"] == expected["history"]
    assert [skipped for skipped, _ in expected["history"]] == [False, False, True, False, False, False]
    assert furthest(results[0]["state"], expected["state"]) < 2e-3


@pytest.mark.parametrize("way", ["switched before forward", "switched before backward", "overflow"])
def test_accumulation_without_allreduce_gives_the_joined_gradient(four: Any, way: str) -> None:
    results = [result[way] for result in by_rank(four, ranks.accumulation)]
    expected = ranks.accumulation(ONE)[way]
    assert_all_equal([result["state"] for result in results])
    assert furthest(results[0]["state"], expected["state"]) < 2e-3
    assert [result["scale"] for result in results] == [expected["scale"]] * WORLD_SIZE
    if ranks.HAS_HOOKS or way != "switched before backward":
        assert not torch.equal(results[0]["alone"][0], results[1]["alone"][0])


def test_reducer_averages_on_demand(four: Any) -> None:
    results = by_rank(four, ranks.reducer)
    assert_all_equal([result["grads"] for result in results])
    assert furthest(results[0]["grads"], ranks.reducer(ONE)["grads"]) < 1e-6
    for result in results:
        assert result["loose"]["a"].tolist() == [1.5] * 2
        assert result["loose"]["b"].tolist() == [1.5] * 3


def test_a_frozen_model_can_be_wrapped(four: Any) -> None:
    for result in by_rank(four, ranks.frozen):
        assert torch.equal(result, by_rank(four, ranks.frozen)[0])
        assert furthest([result], [ranks.frozen(ONE)]) < 1e-6
