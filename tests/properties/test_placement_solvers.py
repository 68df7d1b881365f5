"""What every placement solver promises, on random small models and on shapes of real ones."""

import math
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_cases import GIB, SOLVERS, model_shape, needs_scipy, problems, with_budget
from powerinfer.errors import UnsupportedError
from powerinfer.placement.activation_stats import ActivationStats
from powerinfer.placement.cost_model import CostModel, DeviceSpeed
from powerinfer.placement.plan import LayerPlacement, PlacementPlan
from powerinfer.placement.plan_json import PLAN
from powerinfer.placement.problem import PlacementProblem
from powerinfer.placement.sizes import LayerSizes, ModelSizes
from powerinfer.placement.solver import get_solver
from powerinfer.placement.solvers._budget_table import BudgetTable
from powerinfer.placement.solvers._choices import Choices, PartOptions
from powerinfer.placement.step_time import step_s
from powerinfer.placement.sweep import sweep

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


@given(problem=problems())
def test_latency_is_never_worse_than_greedy(problem: PlacementProblem) -> None:
    latency, greedy = (get_solver(name).solve(problem) for name in ("latency", "greedy"))
    assert step_s(problem, latency) <= step_s(problem, greedy)


def test_an_empty_plan_is_no_slower_than_one_whose_handoffs_cost_nothing() -> None:
    # Found by search: one byte on each device, rounded apart and together.
    layer = LayerSizes(0, 0, 0, 0, 0, 0, kv_read_bytes=1)
    sizes = ModelSizes((layer,), 1, 64, output_bytes=1, overhead_bytes=0)
    speed = DeviceSpeed(1e5, 1e5, 0.0)
    stats = ActivationStats(np.ones((1, 1), np.float32), "one", 1)
    problem = PlacementProblem("", sizes, stats, CostModel(speed, speed, 0.0, 1e7), 0)
    latency, greedy = (get_solver(name).solve(problem) for name in ("latency", "greedy"))
    assert step_s(problem, latency) <= step_s(problem, greedy)


@given(problem=problems(max_layers=3, max_neurons=150))
def test_latency_is_optimal_on_small_models(problem: PlacementProblem) -> None:
    fitting = (
        step_s(problem, plan)
        for plan in _all_plans(problem)
        if problem.sizes.placed_bytes(plan) <= problem.budget_bytes
    )
    assert get_solver("latency").solve(problem).predicted_s == min(fitting)


def _all_plans(problem: PlacementProblem) -> Iterator[PlacementPlan]:
    """Every plan of whole groups by falling frequency, made without the solvers' own lists."""
    sizes = problem.sizes
    choices = []
    for number, layer in enumerate(sizes.layers):
        order = np.argsort(-problem.stats.frequency[number].astype(np.float64), kind="stable")
        counts = sorted({min(count, sizes.num_neurons) for count in range(0, 256, 64)})
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


@given(problem=problems(), budgets=st.lists(st.integers(0, 20_000), min_size=2, max_size=12))
def test_latency_never_predicts_slower_with_more_memory(
    problem: PlacementProblem, budgets: list[int]
) -> None:
    _check_never_slower(problem, [*budgets, problem.budget_bytes, problem.sizes.full_bytes])


@pytest.mark.parametrize("problem", [LLAMA, FALCON, SMALL], ids=["llama", "falcon", "small"])
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
        assert step_s(problem, fast) <= step_s(problem, greedy(budget))
        assert problem.sizes.placed_bytes(fast) <= budget
    for budget in budgets[:3]:
        alone = get_solver("latency").solve(with_budget(problem, budget))
        assert PLAN.to_json(alone) == PLAN.to_json(latency(budget))


def _check_never_slower(problem: PlacementProblem, budgets: list[int]) -> None:
    solve = get_solver("latency").prepare(with_budget(problem, max(budgets)))
    times = [step_s(problem, solve(budget)) for budget in sorted(budgets)]
    assert times == sorted(times, reverse=True)


@needs_scipy
def test_latency_comes_close_to_what_highs_finds() -> None:
    from scipy.optimize import Bounds, LinearConstraint, milp

    choices = Choices(SMALL)
    held = np.concatenate([part.held for part in choices.parts])
    cost = np.concatenate([part.cost for part in choices.parts])
    one_each = np.zeros((len(choices.parts), len(cost)))
    for row, end in enumerate(np.cumsum([len(part.cost) for part in choices.parts])):
        one_each[row, end - len(choices.parts[row].cost) : end] = 1.0
    for share in (0.2, 0.45, 0.8):
        capacity = int(share * (SMALL.sizes.full_bytes - GIB))
        solved = milp(
            cost * 1e3,
            integrality=np.ones(len(cost)),
            bounds=Bounds(0, 1),
            constraints=[
                LinearConstraint(one_each, 1, 1),
                LinearConstraint(held[np.newaxis] / capacity, -np.inf, 1.0),
            ],
            options={"mip_rel_gap": 1e-5},
        )
        plan = get_solver("latency").solve(with_budget(SMALL, capacity + GIB))
        assert step_s(SMALL, plan) <= solved.fun * 1e-3 * 1.002


@needs_scipy
def test_a_shape_of_70b_is_solved_close_to_the_bound_of_its_relaxation() -> None:
    problem = model_shape(80, 8192, 28672, has_predictor=True, is_parallel=False)
    choices = Choices(problem)
    solve = get_solver("latency").prepare(problem)
    for share in (0.1, 0.15, 0.2, 0.4, 0.7):
        budget = int(share * problem.sizes.full_bytes)
        bound = _bound(choices.parts, choices.capacity(budget))
        assert step_s(problem, solve(budget)) <= 1.005 * bound
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
    times = [point.step_s for point in points]
    assert times == sorted(times, reverse=True)
    for point in points:
        assert problem.sizes.placed_bytes(point.plan) <= point.budget_bytes
        assert point.step_s == step_s(problem, point.plan)
        assert point.covered_share == problem.stats.covered_share(point.plan)
        assert point.plan.budget_bytes == point.budget_bytes


@given(problem=problems())
def test_a_table_of_coarse_cells_still_never_rises(problem: PlacementProblem) -> None:
    """Rounding to cells costs optimality only: what a table says fits, fits, and never rises."""
    choices = Choices(problem)
    total = sum(int(part.held.max()) for part in choices.parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("powerinfer.placement.solvers._budget_table._MAX_CELLS", 20)
        table = BudgetTable(choices.parts, total)
    before = np.inf
    for capacity in range(0, total + 1, max(1, total // 50)):
        cost, choice = table.choice(capacity)
        pairs = list(zip(choices.parts, choice, strict=True))
        assert sum(int(part.held[option]) for part, option in pairs) <= capacity
        assert sum(float(part.cost[option]) for part, option in pairs) == cost
        assert cost <= before
        before = cost
