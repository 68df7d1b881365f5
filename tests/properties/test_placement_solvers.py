"""What every placement solver promises, on random small models and on shapes of real ones."""

import math
from collections.abc import Iterator
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_cases import SOLVERS, model_shape, needs_scipy, problems, with_budget
from powerinfer.errors import UnsupportedError
from powerinfer.offload.choose_plan import without_neurons
from powerinfer.placement.cost_model import CostModel, DeviceSpeed
from powerinfer.placement.plan import PLAN, LayerPlacement, PlacementPlan
from powerinfer.placement.problem import ActivationStats, LayerSizes, ModelSizes, PlacementProblem
from powerinfer.placement.solvers import get_solver, sweep
from powerinfer.placement.solvers._choices import GROUP, Choices, PartOptions, grouped_order
from powerinfer.placement.solvers.latency import RunChoices
from powerinfer.placement.step_time import MEMORY_WORTH, num_runs, step_s, token_s

LLAMA = model_shape(32, 4096, 11008, has_predictor=True, is_parallel=False)
FALCON = model_shape(20, 8192, 32768, has_predictor=False, is_parallel=True)
SMALL = model_shape(6, 1024, 2900, has_predictor=True, is_parallel=False)


@pytest.mark.parametrize("name", SOLVERS)
def test_the_solvers_are_known_by_name(name: str) -> None:
    assert get_solver(name).name == name
    assert get_solver(name).summary


def test_all_solvers_are_tested() -> None:
    assert {"greedy", "latency", "paper"} <= {param.values[0] for param in SOLVERS}
    with pytest.raises(UnsupportedError, match="Did you mean 'greedy'"):
        get_solver("gredy")


@pytest.mark.parametrize("name", SOLVERS)
@given(problem=problems())
def test_a_plan_fits_its_budget_and_says_its_time(name: str, problem: PlacementProblem) -> None:
    plan = get_solver(name).solve(problem)
    assert problem.sizes.placed_bytes(plan) <= problem.budget_bytes
    assert plan.predicted_s == step_s(problem, plan)
    assert (plan.solver, plan.budget_bytes) == (name, problem.budget_bytes)
    assert plan.model_identity == "model"
    if problem.sizes.layers[0].predictor_bytes == 0:
        assert not any(layer.has_predictor for layer in plan.layers)
    elif any(len(layer.hot) and not layer.has_predictor for layer in plan.layers):
        pytest.fail("hot neurons in a layer whose predictor is on the CPU")


@pytest.mark.parametrize("name", SOLVERS)
@given(problem=problems())
def test_solving_again_gives_the_same_plan(name: str, problem: PlacementProblem) -> None:
    first, second = (PLAN.to_json(get_solver(name).solve(problem)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", SOLVERS)
@given(problem=problems(), budget=st.integers(0, 20_000))
def test_one_preparation_serves_every_smaller_budget(
    name: str, problem: PlacementProblem, budget: int
) -> None:
    solver = get_solver(name)
    smaller = min(budget, problem.budget_bytes)
    alone = solver.solve(with_budget(problem, smaller))
    assert PLAN.to_json(solver.prepare(problem)(smaller)) == PLAN.to_json(alone)


@pytest.mark.parametrize("name", SOLVERS)
@given(problem=problems())
def test_layers_on_the_gpu_are_one_run(name: str, problem: PlacementProblem) -> None:
    """One recorded graph holds them, and the head if that is on the GPU."""
    assert num_runs(get_solver(name).solve(problem)) <= 1


@given(problem=problems())
def test_without_neurons_too_layers_on_the_gpu_are_one_run(problem: PlacementProblem) -> None:
    plan = without_neurons(problem)
    assert num_runs(plan) <= 1
    assert problem.sizes.placed_bytes(plan) <= problem.budget_bytes


@given(problem=problems())
def test_latency_is_never_worse_than_greedy(problem: PlacementProblem) -> None:
    latency, greedy = (get_solver(name).solve(problem) for name in ("latency", "greedy"))
    value = Value(problem)
    if problem.budget_bytes < problem.sizes.full_bytes:
        assert value(latency) <= value(greedy) + value.rounding
    # All that memory is worth is little.
    assert token_s(problem, latency) <= (1 + MEMORY_WORTH) * token_s(problem, greedy)


def test_an_empty_plan_is_no_slower_than_one_whose_handoffs_cost_nothing() -> None:
    # Found by search: one byte on each device, rounded apart and together.
    layer = LayerSizes(0, 0, 0, 0, 0, 0, kv_read_bytes=1)
    sizes = ModelSizes((layer,), 1, 64, output_bytes=1, overhead_bytes=0)
    speed = DeviceSpeed(1e5, 1e5, 0.0)
    stats = ActivationStats(np.ones((1, 1), np.float32), "one", 1)
    problem = PlacementProblem("", sizes, stats, CostModel(speed, speed, 0.0, 1e7), 0)
    nothing, handing = (_plan_of_one(has_attention) for has_attention in (False, True))
    assert step_s(problem, nothing) <= step_s(problem, handing)


def _plan_of_one(has_attention: bool) -> PlacementPlan:
    layer = LayerPlacement(has_attention, False, np.zeros(0, np.int32))
    return PlacementPlan("", "", 0, 1, has_attention, (layer,))


@given(problem=problems(max_layers=3, max_neurons=150))
def test_latency_is_close_to_the_best_of_all_plans_on_small_models(
    problem: PlacementProblem,
) -> None:
    """It costs as much as the best with some bytes less, those of one group or part at most."""
    value = Value(problem)
    plan = get_solver("latency").solve(problem)
    sizes = problem.sizes
    largest = max(
        max(layer.attention_bytes + layer.kv_bytes, layer.predictor_bytes)
        + layer.neuron_bytes * sizes.num_neurons
        for layer in sizes.layers
    )
    spared = problem.budget_bytes - largest - sizes.output_bytes
    fitting = (value(each) for each in _all_plans(problem) if _is_spared(problem, each, spared))
    more = MEMORY_WORTH * token_s(problem, plan) if problem.budget_bytes >= sizes.full_bytes else 0
    assert value(plan) <= min(fitting) + value.rounding + more


def _is_spared(problem: PlacementProblem, plan: PlacementPlan, budget_bytes: int) -> bool:
    return num_runs(plan) <= 1 and problem.sizes.placed_bytes(plan) <= max(0, budget_bytes)


def _all_plans(problem: PlacementProblem) -> Iterator[PlacementPlan]:
    """Every plan of whole groups by falling frequency, made without the solvers' own lists."""
    sizes = problem.sizes
    choices = []
    for number, layer in enumerate(sizes.layers):
        frequency = problem.stats.frequency[number].astype(np.float64)
        order = np.argsort(-frequency, kind="stable").astype(np.int32)
        order = grouped_order(order, frequency, sizes.num_experts)
        counts = sorted({min(count, sizes.num_neurons) for count in range(0, 256, GROUP)})
        none = np.zeros(0, np.int32)
        placements = [LayerPlacement(False, False, none), LayerPlacement(True, False, none)]
        has_predictor = layer.predictor_bytes > 0
        placements += [
            LayerPlacement(True, has_predictor, np.sort(order[:count]).astype(np.int32))
            for count in counts
        ]
        choices.append(placements)
    for layers in product(*choices):
        for has_output in (False, True):
            yield PlacementPlan("", "", 0, sizes.num_neurons, has_output, layers)


class Value:
    """What latency minimises, of plans: their cost less what the memory that they take is worth."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self.byte_s = Choices(problem).byte_s
        # Of a sum of some hundred parts, each rounded to 2^-44 s.
        self.rounding = 1e-10

    def __call__(self, plan: PlacementPlan) -> float:
        sizes = self.problem.sizes
        held = sizes.placed_bytes(plan) - (sizes.overhead_bytes if plan.has_anything else 0)
        return token_s(self.problem, plan) - self.byte_s * held


@given(problem=problems(), budgets=st.lists(st.integers(0, 20_000), min_size=2, max_size=12))
def test_latency_never_predicts_slower_with_more_memory(
    problem: PlacementProblem, budgets: list[int]
) -> None:
    _check_never_slower(problem, [*budgets, problem.budget_bytes, problem.sizes.full_bytes])


@pytest.mark.parametrize(
    "problem",
    [
        # As the small one, but larger.
        pytest.param(LLAMA, marks=pytest.mark.thorough),
        pytest.param(FALCON, marks=pytest.mark.slow),
        SMALL,
    ],
    ids=["llama", "falcon", "small"],
)
def test_real_shapes_never_slower_with_more_memory_nor_than_greedy(
    problem: PlacementProblem,
) -> None:
    full = problem.sizes.full_bytes
    rng = np.random.default_rng(1)
    budgets = [int(budget) for budget in rng.integers(0, full, 40)]
    # Neighbours of a byte, where a step of a chain just fits or just does not.
    held = get_solver("greedy").solve(with_budget(problem, full // 2))
    exact = problem.sizes.placed_bytes(held)
    _check_never_slower(problem, [*budgets, exact - 1, exact, exact + 1, full - 1, full])
    latency, greedy = (get_solver(name).prepare(problem) for name in ("latency", "greedy"))
    for budget in budgets[:12]:
        fast = latency(budget)
        assert token_s(problem, fast) <= token_s(problem, greedy(budget))
        assert problem.sizes.placed_bytes(fast) <= budget
    for budget in budgets[:3]:
        alone = get_solver("latency").solve(with_budget(problem, budget))
        assert PLAN.to_json(alone) == PLAN.to_json(latency(budget))


def _check_never_slower(problem: PlacementProblem, budgets: list[int]) -> None:
    solve = get_solver("latency").prepare(with_budget(problem, max(budgets)))
    value = Value(problem)
    full = problem.sizes.full_bytes
    plans = [solve(budget) for budget in sorted(budgets)]
    part = [value(plan) for plan in plans if plan.budget_bytes < full]
    for before, after in pairwise(part):
        assert after <= before + value.rounding
    # Where everything fits it may cost a little more than the best.
    times = [token_s(problem, plan) for plan in plans]
    for number, time in enumerate(times):
        assert time <= (1 + MEMORY_WORTH) * min(times[: number + 1])


@pytest.mark.parametrize(
    "problem", [LLAMA, pytest.param(FALCON, marks=pytest.mark.slow)], ids=["llama", "falcon"]
)
def test_on_real_shapes_more_memory_makes_every_token_faster(problem: PlacementProblem) -> None:
    full = problem.sizes.full_bytes
    solve = get_solver("latency").prepare(problem)
    times = [token_s(problem, solve(full * tenth // 10)) for tenth in range(11)]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    "problem", [LLAMA, pytest.param(FALCON, marks=pytest.mark.slow)], ids=["llama", "falcon"]
)
def test_memory_is_used_where_that_costs_little(problem: PlacementProblem) -> None:
    """For decoding alone some neurons are better left to the CPU; prompts would have them sent."""
    full = problem.sizes.full_bytes
    for share in (0.4, 0.7, 1.0):
        budget = int(share * full)
        plan = get_solver("latency").solve(with_budget(problem, budget))
        assert problem.sizes.placed_bytes(plan) >= 0.995 * budget


@given(problem=problems())
def test_the_cost_of_a_run_is_that_of_its_options(problem: PlacementProblem) -> None:
    choices = Choices(problem)
    capacity = choices.capacity(problem.budget_bytes)
    found = RunChoices(choices).best(capacity)
    if found is None:
        assert not any(part.held[1] <= capacity for part in choices.parts)
        return
    cost, choice = found
    pairs = list(zip(choices.parts, choice, strict=True))
    assert sum(int(part.held[option]) for part, option in pairs) <= capacity
    total = choices.run_s + sum(float(part.cost[option]) for part, option in pairs)
    assert cost == pytest.approx(total, rel=1e-12, abs=1e-12)
    assert num_runs(choices.plan("runs", problem.budget_bytes, choice)) == 1


@needs_scipy
@pytest.mark.slow
def test_real_shapes_are_solved_close_to_the_bound_of_their_relaxation() -> None:
    for problem in (SMALL, model_shape(80, 8192, 28672, has_predictor=True, is_parallel=False)):
        choices, value = Choices(problem), Value(problem)
        solve = get_solver("latency").prepare(problem)
        for share in (0.1, 0.15, 0.2, 0.4, 0.7):
            budget = int(share * problem.sizes.full_bytes)
            plan = solve(budget)
            bound = _bound(choices.parts, choices.capacity(budget))
            assert value(plan) <= 1.005 * (bound + num_runs(plan) * choices.run_s)


@needs_scipy
@pytest.mark.slow
def test_a_shape_of_70b_is_solved_by_paper() -> None:
    problem = model_shape(80, 8192, 28672, has_predictor=True, is_parallel=False)
    plan = get_solver("paper").solve(with_budget(problem, problem.sizes.full_bytes // 2))
    assert problem.stats.covered_share(plan) > 0.5


def _bound(parts: tuple[PartOptions, ...], capacity: int) -> float:
    """No plan within the capacity takes less: memory at the price that makes the most of it."""
    from scipy.optimize import minimize_scalar

    def minus_least(logarithm: float) -> float:
        price = math.pow(10.0, logarithm)
        least = sum(float((part.cost + price * part.held).min()) for part in parts)
        return price * capacity - least

    found = minimize_scalar(minus_least, bounds=(-14.0, -8.0), method="bounded")
    return -float(found.fun)


@needs_scipy
@given(problem=problems(max_layers=3, max_neurons=200))
def test_paper_covers_most_within_its_constraints(problem: PlacementProblem) -> None:
    plan = get_solver("paper").solve(problem)
    greedy = get_solver("greedy").solve(problem)
    has_dense = all(layer.has_attention for layer in greedy.layers) and greedy.has_output
    wants_predictor = problem.sizes.layers[0].predictor_bytes > 0
    if not has_dense or any(layer.has_predictor != wants_predictor for layer in greedy.layers):
        assert PLAN.to_json(plan).split('"layers"')[1] == PLAN.to_json(greedy).split('"layers"')[1]
        return
    covered = [_covered(problem, plan)]
    covered += [
        _covered(problem, other)
        for other in _all_plans(problem)
        if problem.sizes.placed_bytes(other) <= problem.budget_bytes
        and _follows_the_paper(problem, other, wants_predictor=wants_predictor)
    ]
    assert _follows_the_paper(problem, plan, wants_predictor=wants_predictor)
    assert covered[0] >= max(covered) * (1 - 1e-6)


def _covered(problem: PlacementProblem, plan: PlacementPlan) -> float:
    return sum(
        float(problem.stats.rounded(number)[layer.hot].sum())
        for number, layer in enumerate(plan.layers)
    )


def _follows_the_paper(
    problem: PlacementProblem, plan: PlacementPlan, *, wants_predictor: bool
) -> bool:
    from powerinfer.placement.solvers.paper import least_neurons

    if not plan.has_output:
        return False
    for number, layer in enumerate(plan.layers):
        if not layer.has_attention or layer.has_predictor != wants_predictor:
            return False
        least = least_neurons(problem, number)
        if len(layer.hot) and (least is None or len(layer.hot) < least):
            return False
    return True


@pytest.mark.parametrize("name", SOLVERS)
@given(problem=problems(), data=st.data())
def test_a_ladder_of_budgets_never_rises(
    name: str, problem: PlacementProblem, data: st.DataObject
) -> None:
    budgets = data.draw(st.lists(st.integers(0, 20_000), max_size=6))
    points = sweep(problem, budgets, get_solver(name))
    assert [point.budget_bytes for point in points] == sorted(set(budgets))
    costs = [token_s(problem, point.plan) for point in points]
    for number, cost in enumerate(costs):
        assert cost <= (1 + MEMORY_WORTH) * min(costs[: number + 1])
    for point in points:
        assert problem.sizes.placed_bytes(point.plan) <= point.budget_bytes
        assert point.step_s == step_s(problem, point.plan)
        assert point.covered_share == problem.stats.covered_share(point.plan)
        assert point.plan.budget_bytes == point.budget_bytes
