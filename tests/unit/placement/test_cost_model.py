"""The predicted time of a step, against sums made by hand."""

from dataclasses import replace

import numpy as np
import pytest

from powerinfer.errors import PlacementError
from powerinfer.placement.cost_model import CostModel, DeviceSpeed
from powerinfer.placement.plan import LayerPlacement, PlacementPlan
from powerinfer.placement.problem import (
    ActivationStats,
    HostReads,
    LayerSizes,
    ModelSizes,
    PlacementProblem,
)
from powerinfer.placement.step_time import layer_s, num_runs, step_s

GPU = DeviceSpeed(read_bytes_per_s=1000.0, gather_bytes_per_s=500.0, launch_s=0.001)
CPU = DeviceSpeed(read_bytes_per_s=100.0, gather_bytes_per_s=50.0, launch_s=0.01)
HANDOFF_S = 0.1
RUN_S = 0.7
COST = CostModel(GPU, CPU, HANDOFF_S, 1e4, RUN_S)
LAYER = LayerSizes(
    attention_bytes=200,
    kv_bytes=40,
    predictor_bytes=30,
    neuron_bytes=6,
    idle_bytes=0,
    active_bytes=6,
    kv_read_bytes=20,
)
FREQUENCY = np.array([[0.25, 1.0, 0.5, 0.0]], np.float32)

# By hand: 220 bytes of attention, 30 of the predictor, 1.75 of 4 neurons fire.
GPU_ATTENTION, CPU_ATTENTION = 0.221, 2.21
GPU_PREDICTOR, CPU_PREDICTOR = 0.031, 0.31
ALL_COLD = 0.01 + 1.75 * 6 / 50
# One run of layers or, with nothing but the head, of that alone.
GPU_HEAD, CPU_HEAD = RUN_S + 0.051, 0.51


def _problem(layer: LayerSizes = LAYER, *, is_parallel: bool = False) -> PlacementProblem:
    sizes = ModelSizes((layer,), 4, 8, 50, 1000, is_parallel)
    return PlacementProblem("", sizes, ActivationStats(FREQUENCY, "hand", 4), COST, 0)


def _plan(has_attention: bool, has_predictor: bool, hot: tuple[int, ...] = ()) -> PlacementPlan:
    placement = LayerPlacement(has_attention, has_predictor, np.array(hot, np.int32))
    return PlacementPlan("", "", 0, 4, has_output=True, layers=(placement,))


# Hot neurons 1 and 2 fire 1.5 times a token, the cold ones 0.25 times.
HOT = 0.001 + 1.5 * 6 / 500
COLD = 0.01 + 0.25 * 6 / 50
FULL = 0.001 + 1.75 * 6 / 500

NOWHERE, ATTENTION, PREDICTOR = _plan(False, False), _plan(True, False), _plan(True, True)
SOME_HOT, ALL_HOT = _plan(True, True, (1, 2)), _plan(True, True, (0, 1, 2, 3))

SEQUENTIAL = {
    "all on the CPU": (NOWHERE, CPU_ATTENTION + CPU_PREDICTOR + ALL_COLD),
    "attention": (ATTENTION, GPU_ATTENTION + HANDOFF_S + CPU_PREDICTOR + ALL_COLD),
    "predictor": (PREDICTOR, GPU_ATTENTION + GPU_PREDICTOR + HANDOFF_S + ALL_COLD),
    "some hot": (SOME_HOT, GPU_ATTENTION + GPU_PREDICTOR + max(HOT, HANDOFF_S + COLD)),
    "all hot": (ALL_HOT, GPU_ATTENTION + GPU_PREDICTOR + FULL),
}


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_sequential_layer(name: str) -> None:
    plan, wanted = SEQUENTIAL[name]
    assert step_s(_problem(), plan) == pytest.approx(wanted + GPU_HEAD, rel=1e-9)


PARALLEL = {
    "all on the CPU": (NOWHERE, CPU_ATTENTION + CPU_PREDICTOR + ALL_COLD),
    "attention": (ATTENTION, max(GPU_ATTENTION, HANDOFF_S + CPU_PREDICTOR + ALL_COLD)),
    "predictor": (PREDICTOR, GPU_PREDICTOR + max(GPU_ATTENTION, HANDOFF_S + ALL_COLD)),
    "some hot": (SOME_HOT, GPU_PREDICTOR + max(GPU_ATTENTION + HOT, HANDOFF_S + COLD)),
    "all hot": (ALL_HOT, GPU_ATTENTION + GPU_PREDICTOR + FULL),
}


@pytest.mark.parametrize("name", PARALLEL)
def test_parallel_layer(name: str) -> None:
    plan, wanted = PARALLEL[name]
    assert step_s(_problem(is_parallel=True), plan) == pytest.approx(wanted + GPU_HEAD, rel=1e-9)


@pytest.mark.parametrize("cold", [0, 3])
def test_one_cold_neuron_costs_a_handoff(cold: int) -> None:
    plan = _plan(True, True, tuple({0, 1, 2, 3} - {cold}))
    waited = HANDOFF_S + 0.01 + float(FREQUENCY[0, cold]) * 6 / 50
    wanted = GPU_ATTENTION + GPU_PREDICTOR + waited + GPU_HEAD
    assert step_s(_problem(), plan) == pytest.approx(wanted, rel=1e-9)


def test_output_head_on_the_cpu_is_handed_nothing_over() -> None:
    there = step_s(_problem(), ALL_HOT)
    here = step_s(_problem(), replace(ALL_HOT, has_output=False))
    # The stream is copied out of the run of layers in any case.
    assert here - there == pytest.approx(CPU_HEAD + RUN_S - GPU_HEAD, rel=1e-9)


@pytest.mark.parametrize(
    ("on_gpu", "has_output", "runs"),
    [
        ("CCCC", False, 0),
        ("CCCC", True, 1),
        ("GGGG", False, 1),
        ("GGGG", True, 1),
        ("CCGG", True, 1),
        ("GGCC", False, 1),
        ("GGCC", True, 2),
        ("CGGC", False, 1),
        ("GCGC", False, 2),
        ("GCGC", True, 3),
        ("GCCG", True, 2),
    ],
)
def test_each_run_of_layers_on_the_gpu_costs_once(on_gpu: str, has_output: bool, runs: int) -> None:
    """Runs of layers, the last of them with the head; a head behind layers on the CPU is one."""
    sizes = ModelSizes((LAYER,) * 4, 4, 8, 50, 1000)
    stats = ActivationStats(np.repeat(FREQUENCY, 4, axis=0), "hand", 4)
    problem = PlacementProblem("", sizes, stats, COST, 0)
    layers = tuple((ALL_HOT if each == "G" else NOWHERE).layers[0] for each in on_gpu)
    plan = PlacementPlan("", "", 0, 4, has_output, layers)
    assert num_runs(plan) == runs
    free = replace(problem, cost=replace(COST, run_s=0.0))
    assert step_s(problem, plan) - step_s(free, plan) == pytest.approx(runs * RUN_S)
    layer_s = {"G": GPU_ATTENTION + GPU_PREDICTOR + FULL}
    layer_s["C"] = CPU_ATTENTION + CPU_PREDICTOR + ALL_COLD
    head = GPU_HEAD - RUN_S if has_output else CPU_HEAD
    assert step_s(free, plan) == pytest.approx(sum(layer_s[each] for each in on_gpu) + head)


def test_an_empty_plan_hands_nothing_over() -> None:
    wanted = CPU_ATTENTION + CPU_PREDICTOR + ALL_COLD + CPU_HEAD
    assert step_s(_problem(), replace(NOWHERE, has_output=False)) == pytest.approx(wanted)


def test_without_a_predictor_the_deciding_row_is_always_read() -> None:
    layer = replace(LAYER, predictor_bytes=0, idle_bytes=2, active_bytes=4)
    hot = 0.001 + 2 * 2 / 1000 + 1.5 * 4 / 500
    cold = 0.01 + 2 * 2 / 100 + 0.25 * 4 / 50
    wanted = GPU_ATTENTION + max(hot, HANDOFF_S + cold) + GPU_HEAD
    assert step_s(_problem(layer), _plan(True, False, (1, 2))) == pytest.approx(wanted)


def test_dense_reads_everything_in_one_piece() -> None:
    layer = replace(LAYER, predictor_bytes=0, idle_bytes=6, active_bytes=0)
    cold = 0.01 + 2 * 6 / 100
    wanted = GPU_ATTENTION + max(0.001 + 2 * 6 / 1000, HANDOFF_S + cold) + GPU_HEAD
    assert step_s(_problem(layer), _plan(True, False, (0, 3))) == pytest.approx(wanted)


def test_the_cpu_reads_its_own_formats() -> None:
    layer = replace(LAYER, host=HostReads(100, 10, 1, 2))
    problem = _problem(layer)
    problem = replace(problem, sizes=replace(problem.sizes, host_output_bytes=20))
    # Keys and values weigh the same on both.
    computed = (0.01 + 120 / 100) + (0.01 + 10 / 100) + (0.01 + 4 / 100 + 1.75 * 2 / 50)
    found = step_s(problem, replace(NOWHERE, has_output=False))
    assert found == pytest.approx(computed + 0.01 + 20 / 100)
    assert step_s(problem, ALL_HOT) == step_s(_problem(), ALL_HOT)


def test_a_down_in_one_piece_is_read_whole_for_any_cold_neuron() -> None:
    usual = replace(LAYER, host=HostReads(200, 30, 0, 6))
    whole = replace(LAYER, host=HostReads(200, 30, 0, 6, down_bytes=70))
    one_cold = _plan(True, True, (0, 1, 2))
    for plan, more in ((NOWHERE, 0.7), (SOME_HOT, 0.7), (one_cold, 0.7), (ALL_HOT, 0.0)):
        difference = step_s(_problem(whole), plan) - step_s(_problem(usual), plan)
        assert difference == pytest.approx(more)
    assert layer_s(_problem(whole), ALL_HOT, 0) == layer_s(_problem(usual), ALL_HOT, 0)


def test_the_predictor_of_a_single_neuron_is_asked() -> None:
    sizes = ModelSizes((LAYER,), 1, 8, 50, 1000)
    stats = ActivationStats(np.array([[0.5]], np.float32), "hand", 4)
    problem = replace(_problem(), sizes=sizes, stats=stats)
    waited = HANDOFF_S + CPU_PREDICTOR + 0.01 + 0.5 * 6 / 50
    found = step_s(problem, replace(_plan(True, False), num_neurons=1))
    assert found == pytest.approx(GPU_ATTENTION + waited + GPU_HEAD)


def test_the_time_of_a_layer_is_without_the_head_and_the_run() -> None:
    wanted = GPU_ATTENTION + GPU_PREDICTOR + HANDOFF_S + COLD
    assert layer_s(_problem(), SOME_HOT, 0) == pytest.approx(wanted)


def test_a_part_that_is_not_there_takes_no_time() -> None:
    layer = replace(LAYER, attention_bytes=0, kv_read_bytes=0, predictor_bytes=0)
    assert layer_s(_problem(layer), _plan(True, False, (0, 1, 2, 3)), 0) == pytest.approx(FULL)


def test_the_time_of_a_set_does_not_hang_on_the_order_of_its_sum() -> None:
    rng = np.random.default_rng(0)
    frequency = rng.random((3, 999), np.float32) ** 9
    stats = ActivationStats(frequency, "random", 1)
    values = stats.rounded(1)
    sums = {float(values[rng.permutation(999)].cumsum()[-1]) for _ in range(20)}
    assert len(sums) == 1
    np.testing.assert_allclose(values, frequency[1], atol=2**-25)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_speeds_must_be_speeds(value: float) -> None:
    with pytest.raises(PlacementError, match="gather_bytes_per_s of a cost model is"):
        DeviceSpeed(1.0, value, 0.0)
    with pytest.raises(PlacementError, match="transfer_bytes_per_s of a cost model is"):
        CostModel(GPU, CPU, 0.0, value)


@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf")])
def test_times_must_be_times(value: float) -> None:
    with pytest.raises(PlacementError, match="launch_s of a cost model is"):
        DeviceSpeed(1.0, 1.0, value)
    with pytest.raises(PlacementError, match="handoff_s of a cost model is"):
        CostModel(GPU, CPU, value, 1.0)
    with pytest.raises(PlacementError, match="run_s of a cost model is"):
        CostModel(GPU, CPU, 0.0, 1.0, value)


def test_a_plan_of_another_model_is_refused() -> None:
    plan = replace(_plan(True, True), num_neurons=5)
    with pytest.raises(PlacementError, match="1 layers of 5 neurons, the model has 1 of 4"):
        step_s(_problem(), plan)
