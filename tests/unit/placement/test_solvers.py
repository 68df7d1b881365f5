"""The parts of solvers, by worked examples: options, hulls, chains, runs of layers."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

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
from powerinfer.placement.solvers import Solver, get_solver, sweep
from powerinfer.placement.solvers._choices import Choices, PartOptions, Path, hull, hull_path
from powerinfer.placement.solvers.greedy import greedy_path
from powerinfer.placement.solvers.paper import least_neurons
from powerinfer.placement.step_time import num_runs, prompt_s, step_s, token_s


def _part(held: list[int], cost: list[float]) -> PartOptions:
    return PartOptions(np.array(held, np.int64), np.array(cost, np.float64))


def _ints(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


# A's bytes gain 0.4 and then 0.1 each, B's 0.6.
A = _part([0, 10, 20], [10, 6, 5])
B = _part([0, 5], [7, 4])


# Hulls and chains


@pytest.mark.parametrize(
    ("held", "cost", "chain"),
    [
        ([0, 10, 20], [10, 6, 5], [0, 1, 2]),
        # From 10 to 30 bytes 0.25 is gained, from 10 to 20 only 0.1.
        ([0, 10, 20, 30], [10, 6, 5, 1], [0, 1, 3]),
        # What gains as much per byte as the step behind it is no corner.
        ([0, 10, 20], [10, 6, 2], [0, 2]),
        # Nothing is gained by a byte that does not make it cheaper.
        ([0, 10, 20, 30], [5, 5, 4, 6], [0, 2]),
        # The last two gain 0.2 and 0.1 a byte, whatever was gained before them.
        ([0, 10, 20, 30, 40], [22, 12, 3, 1, 0], [0, 1, 2, 3, 4]),
        # Of options of equal bytes the cheapest, of equal options the first.
        ([0, 0, 0, 5], [10, 8, 8, 9], [1]),
        ([4, 2, 0], [1, 2, 4], [2, 1, 0]),
        ([7], [3], [0]),
    ],
)
def test_a_hull_gains_ever_less_per_byte(
    held: list[int], cost: list[float], chain: list[int]
) -> None:
    assert hull(_part(held, cost)).tolist() == chain


def test_a_chain_goes_where_most_is_gained_per_byte() -> None:
    path = hull_path((A, B))
    assert path.start.tolist() == [0, 0]
    assert path.part.tolist() == [1, 0, 0]
    assert path.option.tolist() == [1, 1, 2]
    assert path.held.tolist() == [0, 5, 15, 25]
    assert path.cost.tolist() == [17, 14, 10, 9]
    assert [path.choice(steps) for steps in range(4)] == [[0, 0], [0, 1], [1, 1], [2, 1]]
    fitting = [path.last_within(capacity) for capacity in (0, 4, 5, 14, 15, 24, 25, 999)]
    assert fitting == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_chain_starts_at_the_cheapest_options_that_take_nothing() -> None:
    path = hull_path((_part([3, 9], [5, 1]), _part([0, 0], [7, 4])))
    assert path.start.tolist() == [0, 1]
    assert (path.held.tolist(), path.cost.tolist()) == ([3, 9], [9, 5])
    alone = hull_path((_part([3], [5]), _part([0, 0], [7, 4])))
    assert (alone.held.tolist(), alone.cost.tolist()) == ([3], [9])
    assert alone.choice(0) == [0, 1]


def test_of_parts_that_gain_as_much_the_first_comes_first() -> None:
    path = hull_path((_part([0, 10], [10, 6]), _part([0, 10], [10, 4])) * 50)
    assert path.part.tolist() == [*range(1, 100, 2), *range(0, 100, 2)]
    assert path.held.tolist() == list(range(0, 1001, 10))


def test_of_a_chain_that_gets_dearer_the_cheapest_place_is_best() -> None:
    options = _part([0, 1, 2, 3, 4], [5, 7, 4, 4, 6])
    path = Path.walk((options,), _ints(0), _ints(0, 0, 0, 0), _ints(1, 2, 3, 4))
    assert path.cost.tolist() == [5, 7, 4, 4, 6]
    assert [path.best_within(capacity) for capacity in range(5)] == [0, 0, 2, 2, 2]


def test_steps_of_several_parts_add_up_by_what_each_changes() -> None:
    path = Path.walk((A, B), _ints(1, 0), _ints(1, 0, 1, 0), _ints(1, 2, 0, 0))
    assert path.held.tolist() == [10, 15, 25, 20, 0]
    assert path.cost.tolist() == [13, 10, 9, 12, 17]
    assert path.choice(2) == [2, 1]


# Options of a model

SPEED = DeviceSpeed(1e6, 5e5, 1e-6)
RUN_S = 4e-3
COST = CostModel(SPEED, DeviceSpeed(1e4, 5e3, 1e-5), 1e-6, 1e6, RUN_S)
LAYER = LayerSizes(200, 40, 30, 6, 1, 5, 20, HostReads(150, 25, 1, 4, 3))


def _problem(
    *, is_parallel: bool = False, predictor_bytes: int = 30, num_neurons: int = 70
) -> PlacementProblem:
    layer = replace(LAYER, predictor_bytes=predictor_bytes)
    layers = (layer, replace(layer, attention_bytes=100, neuron_bytes=8))
    sizes = ModelSizes(layers, num_neurons, 8, 50, 9, is_parallel, 45)
    # Layer 0 fires by falling id, layer 1 by rising.
    rising = (1 + np.arange(num_neurons, dtype=np.float32)) / 128
    stats = ActivationStats(np.stack([rising, rising[::-1]]), "hand", 8)
    return PlacementProblem("model", sizes, stats, COST, sizes.full_bytes)


def test_a_layer_goes_to_the_gpu_part_by_part_and_group_by_group() -> None:
    choices = Choices(_problem())
    assert [part.held.tolist() for part in choices.parts] == [
        [0, 240, 270, 270 + 64 * 6, 270 + 70 * 6],
        [0, 140, 170, 170 + 64 * 8, 170 + 70 * 8],
        [0, 50],
    ]
    first, second = choices.layers
    found = [first.placement(option) for option in range(5)]
    assert [placed.has_attention for placed in found] == [False, True, True, True, True]
    assert [placed.has_predictor for placed in found] == [False, False, True, True, True]
    assert [len(placed.hot) for placed in found] == [0, 0, 0, 64, 70]
    assert found[3].hot.tolist() == list(range(6, 70))
    assert second.placement(3).hot.tolist() == list(range(64))
    # All but the six least frequent, 1 to 6 of 128.
    assert first.expected.tolist() == [0, 0, 0, (70 * 71 / 2 - 21) / 128, 70 * 71 / 2 / 128]
    assert choices.nothing == [0, 0, 0]
    assert (choices.capacity(9), choices.capacity(8), choices.capacity(109)) == (0, -1, 100)


def test_a_layer_without_a_predictor_has_an_option_less() -> None:
    choices = Choices(_problem(predictor_bytes=0, num_neurons=64))
    assert choices.parts[0].held.tolist() == [0, 240, 240 + 64 * 6]
    found = [choices.layers[0].placement(option) for option in range(3)]
    assert [placed.has_predictor for placed in found] == [False] * 3
    assert [len(placed.hot) for placed in found] == [0, 0, 64]
    assert Choices(_problem(predictor_bytes=1)).layers[0].has_predictor


@pytest.mark.parametrize("is_parallel", [False, True])
@pytest.mark.parametrize("predictor_bytes", [0, 30])
def test_costs_of_options_add_up_to_what_their_plan_costs(
    is_parallel: bool, predictor_bytes: int
) -> None:
    """A decode step and its prompt tokens, less what memory is worth; runs of layers besides."""
    problem = _problem(is_parallel=is_parallel, predictor_bytes=predictor_bytes)
    problem = replace(problem, prompt_tokens=2.0)
    choices = Choices(problem)
    assert choices.run_s == pytest.approx(RUN_S)
    for choice in product(*(range(len(part.held)) for part in choices.parts)):
        plan = choices.plan("hand", 77, choice)
        pairs = list(zip(choices.parts, choice, strict=True))
        held = sum(int(part.held[option]) for part, option in pairs)
        assert plan.has_output == (choice[-1] == 1)
        assert problem.sizes.placed_bytes(plan) == (held + 9 if any(choice) else 0)
        cost = sum(float(part.cost[option]) for part, option in pairs)
        runs = num_runs(plan) * choices.run_s
        wanted = step_s(problem, plan) + 2 * prompt_s(problem, plan) - held * choices.byte_s
        assert cost + runs == pytest.approx(wanted, rel=1e-9)
        assert (plan.model_identity, plan.solver, plan.budget_bytes) == ("model", "hand", 77)


def test_all_of_the_model_is_worth_three_percent_of_the_least_time() -> None:
    problem = _problem()
    choices = Choices(problem)
    placed = problem.sizes.full_bytes - problem.sizes.overhead_bytes
    least = sum(float((part.cost + part.held * choices.byte_s).min()) for part in choices.parts)
    assert choices.byte_s * placed == pytest.approx(0.03 * least)


# One run of layers


@pytest.mark.parametrize(
    ("placed", "wanted"),
    [
        # Layers that gain most are next to each other, behind, in front or between others.
        ([9, 9, 1, 1], ["G", "G", "C", "C"]),
        ([1, 1, 9, 9], ["C", "C", "G", "G"]),
        ([1, 9, 9, 1], ["C", "G", "G", "C"]),
        # Two runs would gain more, one takes what lies between.
        ([9, 5, 9, 1], ["G", "G", "C", "C"]),
        ([9, 5, 9, 8], ["C", "C", "G", "G"]),
    ],
)
def test_the_best_run_has_the_layers_that_gain_most(placed: list[int], wanted: list[str]) -> None:
    layers = tuple(
        LayerSizes(100, 0, 0, 1, 0, 0, host=HostReads(1000 * gain, 0, 0, 0)) for gain in placed
    )
    sizes = ModelSizes(layers, 1, 8, 10_000, 0)
    stats = ActivationStats(np.zeros((4, 1), np.float32), "hand", 1)
    cost = CostModel(DeviceSpeed(1e9, 1e9, 0.0), DeviceSpeed(1e6, 1e6, 0.0), 0.0, 1e6)
    problem = PlacementProblem("", sizes, stats, cost, 202)
    plan = get_solver("latency").solve(problem)
    assert ["G" if layer.has_attention else "C" for layer in plan.layers] == wanted


def test_a_layer_is_completed_by_taking_back_neurons_of_others() -> None:
    """The hand-off that it saves is worth more than groups of neurons elsewhere."""
    layer = LayerSizes(1, 0, 0, 1, 0, 1)
    sizes = ModelSizes((layer,) * 2, 128, 8, 0, 0)
    frequency = np.full((2, 128), 0.5, np.float32)
    frequency[:, 64:] = 0.25
    frequency[1] /= 2
    cost = CostModel(DeviceSpeed(1e6, 1e6, 0.0), DeviceSpeed(1e4, 1e4, 0.0), 1e-2, 1e9)
    stats = ActivationStats(frequency, "hand", 1)
    # One group is missing for both layers, half of one for a group in each and one complete.
    problem = PlacementProblem("", sizes, stats, cost, 2 + 2 * 64, 0.0)
    plan = get_solver("latency").solve(problem)
    assert [len(placed.hot) for placed in plan.layers] == [128, 0]


# PowerInfer's order


def _steady(frequencies: list[float], num_neurons: int) -> PlacementProblem:
    """Layers in which every neuron fires as often as any other."""
    layers = (LayerSizes(1, 0, 0, 1, 0, 1),) * len(frequencies)
    sizes = ModelSizes(layers, num_neurons, 8, 1, 0)
    values = np.repeat(np.array(frequencies, np.float32)[:, None], num_neurons, axis=1)
    return PlacementProblem("", sizes, ActivationStats(values, "hand", 1), COST, 10_000)


def test_a_small_group_counts_by_how_often_its_neurons_fire() -> None:
    """70 neurons are a group of 64 and one of 6, whose neurons fire more than those of layer 1."""
    path = greedy_path(Choices(_steady([0.5, 0.25], 70)))
    assert path.part[3:].tolist() == [0, 0, 1, 1]
    assert path.option[3:].tolist() == [2, 3, 2, 3]


def test_of_groups_that_fire_as_often_those_of_the_first_layer_come_first() -> None:
    path = greedy_path(Choices(_steady([0.25, 0.5] * 50, 64)))
    assert path.part[101:].tolist() == [*range(1, 100, 2), *range(0, 100, 2)]


# Memory that is just enough


@pytest.mark.parametrize("name", ["greedy", "latency"])
def test_what_takes_no_memory_is_placed_as_soon_as_the_overhead_fits(name: str) -> None:
    # Keys and values that are read, though nobody counted what holding them takes.
    layer = LayerSizes(0, 0, 30, 6, 1, 5, kv_read_bytes=20)
    problem = _problem()
    problem = replace(problem, sizes=replace(problem.sizes, layers=(layer, layer)))
    solve = get_solver(name).prepare(problem)
    assert [solve(budget).layers[1].has_attention for budget in (8, 9, 10)] == [False, True, True]
    assert not any(layer.has_predictor for layer in solve(38).layers)
    assert any(layer.has_predictor for layer in solve(39).layers)


# The paper's program


def _two_devices(handoff_s: float) -> PlacementProblem:
    # A neuron takes 4 / 4 + 8 / 8 = 2 s on the GPU and 16 / 4 + 8 / 2 = 8 s on the CPU.
    layer = LayerSizes(0, 0, 0, 6, 4, 8, 0, HostReads(0, 0, 16, 8))
    sizes = ModelSizes((layer,), 70, 8, 0, 0)
    cost = CostModel(DeviceSpeed(4, 8, 0), DeviceSpeed(4, 2, 0), handoff_s, 1)
    stats = ActivationStats(np.ones((1, 70), np.float32), "hand", 1)
    return PlacementProblem("", sizes, stats, cost, 1000)


@pytest.mark.parametrize(
    ("handoff_s", "least"), [(0.0, 0), (6.0, 1), (15.0, 3), (420.0, 70), (421.0, 71), (1e300, 71)]
)
def test_so_many_neurons_earn_a_handoff(handoff_s: float, least: int) -> None:
    assert least_neurons(_two_devices(handoff_s), 0) == least


def test_a_gpu_that_is_no_faster_earns_nothing() -> None:
    problem = _two_devices(1.0)
    equal = replace(problem.cost, gpu=DeviceSpeed(1, 2, 0))
    assert least_neurons(replace(problem, cost=equal), 0) is None
    slower = replace(problem.cost, gpu=DeviceSpeed(1, 1, 0))
    assert least_neurons(replace(problem, cost=slower), 0) is None


def test_paper_takes_the_group_that_fits_best_and_not_the_best_per_byte() -> None:
    """64 neurons of 10 bytes that fire 32 times, or 128 of 6 bytes that fire 20 + 8 times."""
    layer = LayerSizes(1, 1, 1, 10, 0, 10)
    layers = (layer, replace(layer, neuron_bytes=6))
    frequency = np.full((2, 128), 1 / 64, np.float32)
    frequency[0, :64], frequency[1, :64], frequency[1, 64:] = 32 / 64, 20 / 64, 8 / 64
    sizes = ModelSizes(layers, 128, 8, 5, 7)
    stats = ActivationStats(frequency, "hand", 64)
    cost = CostModel(DeviceSpeed(1e6, 1e6, 0.0), DeviceSpeed(1e3, 1e3, 0.0), 0.0, 1e6)
    dense = 7 + 5 + 2 * 3
    problem = PlacementProblem("", sizes, stats, cost, dense + 1024)

    def hot(budget: int) -> list[int]:
        plan = get_solver("paper").solve(replace(problem, budget_bytes=budget))
        return [len(placed.hot) for placed in plan.layers]

    assert hot(dense + 383) == [0, 0]
    assert hot(dense + 384) == [0, 64]
    assert hot(dense + 640) == [64, 0]
    assert hot(dense + 768) == [64, 0]
    assert hot(dense + 1024) == [64, 64]
    assert hot(dense + 640 + 768) == [64, 128]
    assert hot(sizes.full_bytes - 1) == [64, 128]
    assert hot(sizes.full_bytes) == [128, 128]
    # Without room for all dense parts there is none for neurons.
    assert hot(dense - 1) == [0, 0]


# Ladders of budgets


def _scripted(hot: dict[int, int]) -> tuple[Solver, list[int]]:
    """A solver whose plans have so many hot neurons, and the budgets that it was prepared for."""
    prepared: list[int] = []

    def prepare(problem: PlacementProblem) -> Callable[[int], PlacementPlan]:
        prepared.append(problem.budget_bytes)

        def plan(budget: int) -> PlacementPlan:
            ids = np.arange(70 - hot[budget], 70, dtype=np.int32)
            layers = (LayerPlacement(True, True, ids), LayerPlacement(True, True, ids))
            made = PlacementPlan("model", f"at {budget}", budget, 70, True, layers)
            return replace(made, predicted_s=step_s(problem, made))

        return plan

    return Solver("scripted", "for a test", prepare), prepared


def test_a_ladder_keeps_the_plan_before_where_more_memory_does_worse() -> None:
    solver, prepared = _scripted({10: 20, 20: 10, 30: 20, 40: 60, 50: 70})
    problem = _problem()
    points = sweep(problem, [30, 10, 50, 20, 40, 20], solver)
    assert prepared == [50]
    assert [point.budget_bytes for point in points] == [10, 20, 30, 40, 50]
    assert [point.plan.budget_bytes for point in points] == [10, 20, 30, 40, 50]
    # As good is no worse: the new plan.
    wanted = ["at 10", "at 10", "at 30", "at 40", "at 50"]
    assert [point.plan.solver for point in points] == wanted
    costs = [token_s(problem, point.plan) for point in points]
    assert costs == sorted(costs, reverse=True)
    for point in points:
        assert point.step_s == point.plan.predicted_s
        assert point.covered_share == problem.stats.covered_share(point.plan)


def test_a_solver_makes_the_plan_of_its_problems_budget() -> None:
    solver, prepared = _scripted({20: 1})
    plan = solver.solve(replace(_problem(), budget_bytes=20))
    assert (prepared, plan.solver) == ([20], "at 20")


def test_what_is_no_solver_is_a_fault_of_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("powerinfer._plugins.load", lambda *_, **__: "text")
    with pytest.raises(TypeError, match=r"solvers\.greedy\.SOLVER is a str"):
        get_solver("greedy")


@pytest.mark.parametrize(
    ("missing", "library"), [("scipy", "scipy"), ("scipy.optimize._milp", "scipy")]
)
def test_a_solver_names_the_library_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, missing: str, library: str
) -> None:
    monkeypatch.setattr("powerinfer._plugins.load", _without(missing))
    with pytest.raises(PlacementError, match=f"solver paper needs {library}, which is not"):
        get_solver("paper")


@pytest.mark.parametrize("missing", [None, "", "powerinfer", "powerinfer.placement.lost"])
def test_a_module_of_ours_that_is_missing_is_no_missing_library(
    monkeypatch: pytest.MonkeyPatch, missing: str | None
) -> None:
    monkeypatch.setattr("powerinfer._plugins.load", _without(missing))
    with pytest.raises(ModuleNotFoundError):
        get_solver("paper")


def _without(module: str | None) -> Callable[..., object]:
    """What loads a file that imports a module which is not there."""

    def load(*_: object, **__: object) -> object:
        raise ModuleNotFoundError("not there", name=module)

    return load
