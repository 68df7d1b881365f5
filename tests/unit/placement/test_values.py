"""Sizes, statistics, plans, reports and problems: sums by hand, and what is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from placement_cases import needs_scipy
from powerinfer.cli.report.placement import placement_json
from powerinfer.errors import PlacementError, UnsupportedError
from powerinfer.placement.cost_model import CostModel, DeviceSpeed
from powerinfer.placement.plan import LayerPlacement, PlacementPlan
from powerinfer.placement.problem import (
    ActivationStats,
    LayerSizes,
    ModelSizes,
    PlacementProblem,
)
from powerinfer.placement.solvers import get_solver, sweep
from powerinfer.placement.step_time import layer_s, step_s

LAYER = LayerSizes(
    attention_bytes=200,
    kv_bytes=40,
    predictor_bytes=30,
    neuron_bytes=6,
    idle_bytes=0,
    active_bytes=6,
)
SIZES = ModelSizes((LAYER,) * 3, num_neurons=128, hidden_size=8, output_bytes=50, overhead_bytes=9)
SPEED = DeviceSpeed(1e6, 1e6, 0.0)
COST = CostModel(SPEED, replace(SPEED, read_bytes_per_s=1e4, gather_bytes_per_s=1e4), 1e-6, 1e6)
NONE = np.zeros(0, np.int32)
DENSE_BYTES = 9 + 50 + 3 * 270


def _frequency() -> npt.NDArray[np.float32]:
    """Layer 1 fires most, then 0, then 2; within a layer the last 64 neurons."""
    frequency = np.full((3, 128), 0.125, np.float32)
    frequency[:, 64:] = np.array([[0.5], [0.75], [0.25]])
    return frequency


def _problem(budget: int = 0) -> PlacementProblem:
    return PlacementProblem("id", SIZES, ActivationStats(_frequency(), "f", 8), COST, budget)


def _plan(*layers: LayerPlacement, has_output: bool = True) -> PlacementPlan:
    return PlacementPlan("id", "hand", 5000, 128, has_output, layers)


HOT = np.arange(64, 128, dtype=np.int32)
PLAN = _plan(
    LayerPlacement(False, False, NONE),
    LayerPlacement(True, True, HOT),
    LayerPlacement(True, False, NONE),
)


def test_placed_bytes_count_the_overhead_and_all_that_is_placed() -> None:
    assert SIZES.placed_bytes(PLAN) == 9 + 50 + (240 + 30 + 64 * 6) + 240
    assert SIZES.placed_bytes(replace(PLAN, has_output=False)) == 9 + (240 + 30 + 384) + 240
    assert SIZES.full_bytes == 9 + 50 + 3 * (240 + 30 + 128 * 6)
    assert replace(SIZES, num_neurons=1).full_bytes == 9 + 50 + 3 * (240 + 30 + 6)
    nothing = _plan(*[LayerPlacement(False, False, NONE)] * 3, has_output=False)
    assert SIZES.placed_bytes(nothing) == 0
    assert not nothing.has_anything
    assert SIZES.placed_bytes(replace(nothing, has_output=True)) == 9 + 50


def test_parts_add_up() -> None:
    found = placement_json(_problem(), PLAN)
    layers: Any = found["layers"]
    assert [layer["layer"] for layer in layers] == [0, 1, 2]
    assert [layer["hot_neurons"] for layer in layers] == [0, 64, 0]
    assert [layer["has_attention"] for layer in layers] == [False, True, True]
    assert [layer["has_predictor"] for layer in layers] == [False, True, False]
    assert [layer["gpu_bytes"] for layer in layers] == [0, 240 + 30 + 384, 240]
    assert (found["attention_bytes"], found["kv_bytes"]) == (400, 80)
    assert (found["predictor_bytes"], found["neuron_bytes"]) == (30, 384)
    assert (found["output_bytes"], found["overhead_bytes"]) == (50, 9)
    assert found["gpu_bytes"] == SIZES.placed_bytes(PLAN)
    assert layers[1]["gpu_share"] == pytest.approx(0.75 / 0.875)
    assert found["gpu_share"] == pytest.approx(48 / (8 * 3 + 16 + 32 + 48))
    assert found["predicted_tokens_per_s"] == 1 / step_s(_problem(), PLAN)
    assert (found["num_neurons"], found["budget_bytes"]) == (128, 5000)


def test_each_layer_has_its_time() -> None:
    """In microseconds, 1 for a hand-off: a byte takes 1 on the GPU and 100 on the CPU."""
    # Of the neurons fire 40, 48 + 8 and 24; the predictor of layer 2 is on the CPU.
    first = (200 + 30 + 40 * 6) * 100
    second = 200 + 30 + (1 + 8 * 6 * 100)
    third = 200 + (1 + (30 + 24 * 6) * 100)
    times = [layer_s(_problem(), PLAN, number) * 1e6 for number in range(3)]
    assert times == pytest.approx([first, second, third])
    assert step_s(_problem(), PLAN) * 1e6 == pytest.approx(first + second + third + 50)


def test_an_empty_plan_adds_up_to_the_time_of_the_cpu() -> None:
    nothing = _plan(*[LayerPlacement(False, False, NONE)] * 3, has_output=False)
    assert placement_json(_problem(), nothing)["gpu_bytes"] == 0
    layers = sum(layer_s(_problem(), nothing, number) for number in range(3))
    assert layers + 50 / 1e4 == pytest.approx(step_s(_problem(), nothing))


def test_shares_of_a_model_that_never_fires_are_zero() -> None:
    problem = replace(_problem(), stats=ActivationStats(np.zeros((3, 128), np.float32), "f", 1))
    assert problem.stats.covered_share(PLAN) == 0.0
    assert problem.stats.covered_share(PLAN, 1) == 0.0


def test_greedy_follows_the_order_of_powerinfer() -> None:
    solve = get_solver("greedy").prepare(_problem(SIZES.full_bytes))

    def shape(budget: int) -> tuple[list[bool], list[bool], bool, list[int]]:
        plan = solve(budget)
        return (
            [layer.has_attention for layer in plan.layers],
            [layer.has_predictor for layer in plan.layers],
            plan.has_output,
            [len(layer.hot) for layer in plan.layers],
        )

    no, yes = [False] * 3, [True] * 3
    assert shape(0) == shape(8) == shape(9 + 239) == (no, no, False, [0] * 3)
    assert shape(9 + 2 * 240) == ([True, True, False], no, False, [0] * 3)
    # The second predictor does not fit, and so nothing behind it does.
    assert shape(9 + 720 + 59) == (yes, [True, False, False], False, [0] * 3)
    assert shape(DENSE_BYTES - 1) == (yes, yes, False, [0] * 3)
    assert shape(DENSE_BYTES + 383) == (yes, yes, True, [0] * 3)
    assert shape(DENSE_BYTES + 384) == (yes, yes, True, [0, 64, 0])
    assert shape(DENSE_BYTES + 2 * 384) == (yes, yes, True, [64, 64, 0])
    assert shape(DENSE_BYTES + 4 * 384) == (yes, yes, True, [128, 64, 64])
    assert shape(SIZES.full_bytes) == (yes, yes, True, [128] * 3)
    np.testing.assert_array_equal(solve(DENSE_BYTES + 384).layers[1].hot, HOT)


@needs_scipy
def test_paper_gives_a_layer_enough_neurons_or_none() -> None:
    slow = CostModel(SPEED, replace(SPEED, gather_bytes_per_s=5e5), 600e-6, 1e6)
    # A neuron takes 6 us on the GPU and 12 on the CPU: 100 of them earn 600 us, so 128 must be.
    problem = replace(_problem(DENSE_BYTES + 3 * 384), cost=slow)
    assert [len(layer.hot) for layer in get_solver("paper").solve(problem).layers] == [0, 128, 0]
    greedy = get_solver("greedy").solve(problem)
    assert [len(layer.hot) for layer in greedy.layers] == [64, 64, 64]
    equal = replace(problem, cost=replace(COST, cpu=SPEED))
    assert [len(layer.hot) for layer in get_solver("paper").solve(equal).layers] == [0, 0, 0]


def test_a_ladder_without_rungs_is_empty() -> None:
    assert sweep(_problem(), [], get_solver("latency")) == []


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(4, np.float32),
        np.zeros((1, 4)),
        np.zeros((0, 4), np.float32),
        np.full((1, 4), np.nan, np.float32),
        np.array([[0.5, -0.1]], np.float32),
        np.array([[0.5, 1.1]], np.float32),
    ],
    ids=["one row", "float64", "no layers", "nan", "negative", "above 1"],
)
def test_frequencies_must_be_frequencies(values: npt.NDArray[Any]) -> None:
    with pytest.raises(PlacementError, match="activation frequencies"):
        ActivationStats(values, "a file", 1)


def test_order_is_by_frequency_then_by_id() -> None:
    stats = ActivationStats(np.array([[0.5, 0.25, 0.5, 1.0, 0.25]], np.float32), "f", 1)
    assert stats.order(0).tolist() == [3, 0, 2, 1, 4]
    assert stats.order(0).dtype == np.int32
    ties = ActivationStats((np.arange(3000) % 3 / 4).astype(np.float32)[None], "f", 1)
    wanted = np.concatenate([np.arange(rest, 3000, 3) for rest in (2, 1, 0)])
    np.testing.assert_array_equal(ties.order(0), wanted)
    assert stats.frequency.shape == (1, 5)


def test_problems_must_fit_together() -> None:
    other = ActivationStats(np.zeros((2, 128), np.float32), "other.pt", 1)
    with pytest.raises(PlacementError, match=r"from other.pt are of 2 layers of 128 neurons"):
        replace(_problem(), stats=other)


def test_plans_must_keep_their_invariants() -> None:
    for hot in ([1, 0], [0, 0], [-1], [128]):
        with pytest.raises(PlacementError, match="layer 0 of the plan: ids of hot neurons"):
            _plan(LayerPlacement(True, True, np.array(hot, np.int32)))
    with pytest.raises(PlacementError, match="has hot neurons"):
        _plan(LayerPlacement(False, False, HOT))
    with pytest.raises(PlacementError, match="has its predictor apart"):
        _plan(LayerPlacement(False, True, NONE))


def test_a_solver_that_is_not_there_is_named() -> None:
    with pytest.raises(UnsupportedError, match="placement solver 'gredy'"):
        get_solver("gredy")
