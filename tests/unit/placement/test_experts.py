"""What a router means for placement: how often neurons are asked, and groups within experts."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_cases import SOLVERS, model_shape, smallest, with_budget
from powerinfer.placement.problem import ActivationStats, PlacementProblem
from powerinfer.placement.solvers import get_solver
from powerinfer.placement.solvers._choices import GROUP, grouped_order
from powerinfer.placement.step_time import hot_neurons, step_s


def asked(frequency: list[float], num_experts: int, num_used: int) -> npt.NDArray[np.float64]:
    """How often each neuron is asked; exact to 2^-24, as frequencies are."""
    problem = smallest(1, len(frequency), "")
    sizes = replace(problem.sizes, num_experts=num_experts, num_used=num_used)
    stats = ActivationStats(np.array([frequency], np.float32), "hand", 1)
    return replace(problem, sizes=sizes, stats=stats).asked(0)


def test_without_experts_every_neuron_is_asked() -> None:
    np.testing.assert_array_equal(asked([0.0, 0.3, 1.0], 1, 1), [1.0] * 3)


def test_experts_are_asked_as_often_as_their_neurons_fire() -> None:
    got = asked([0.1, 0.1, 0.3, 0.3, 0.2, 0.2], 3, 2)
    np.testing.assert_allclose(got, [1 / 3, 1 / 3, 1.0, 1.0, 2 / 3, 2 / 3], atol=2**-22)


def test_an_expert_is_asked_no_less_often_than_a_neuron_of_it_fires() -> None:
    got = asked([0.9, 0.0, 0.5, 0.5], 2, 1)
    np.testing.assert_allclose(got, [0.9, 0.9, 1 / 1.9, 1 / 1.9], atol=2**-22)


def test_where_nothing_fires_all_experts_are_alike() -> None:
    np.testing.assert_array_equal(asked([0.0] * 8, 4, 1), [0.25] * 8)


@given(num_experts=st.integers(1, 6), size=st.integers(1, 200), seed=st.integers(0, 99))
def test_groups_never_straddle_an_expert(num_experts: int, size: int, seed: int) -> None:
    frequency = np.random.default_rng(seed).random(num_experts * size)
    order = np.argsort(-frequency, kind="stable").astype(np.int32)
    got = grouped_order(order, frequency, num_experts)
    assert sorted(got.tolist()) == list(range(num_experts * size))
    num_full = num_experts * (size // GROUP) if num_experts > 1 else 0
    groups = got[: num_full * GROUP].reshape(-1, GROUP)
    assert all(len(set((group // size).tolist())) == 1 for group in groups)
    sums = frequency[groups].sum(axis=1)
    assert (np.diff(sums) <= 1e-12).all()


def experts(num_experts: int, num_used: int) -> PlacementProblem:
    """Experts of which the later ones are chosen less often."""
    problem = model_shape(4, 1024, 2048, has_predictor=False, is_parallel=False)
    chosen = np.linspace(1.0, 0.1, num_experts)
    chosen *= num_used / chosen.sum()
    fires = np.random.default_rng(1).random((4, num_experts, 2048 // num_experts))
    frequency = (fires * np.minimum(chosen, 1.0)[:, None]).reshape(4, -1).astype(np.float32)
    sizes = replace(problem.sizes, num_experts=num_experts, num_used=num_used)
    return replace(problem, sizes=sizes, stats=ActivationStats(frequency, "planted", 100))


def test_neurons_of_experts_that_are_chosen_often_come_first() -> None:
    problem = experts(8, 2)
    sizes = problem.sizes
    held = sum(layer.attention_bytes + layer.kv_bytes for layer in sizes.layers)
    room = sizes.overhead_bytes + held + sizes.output_bytes
    plan = get_solver("latency").solve(
        with_budget(problem, room + 1000 * sizes.layers[0].neuron_bytes)
    )
    hot = np.concatenate([layer.hot for layer in plan.layers]) // 256
    assert len(hot)
    counts = np.bincount(hot, minlength=8)
    assert counts[0] > counts[-1]


def test_experts_that_are_not_used_cost_no_time() -> None:
    few, all_of_them = experts(8, 2), experts(8, 8)
    plan = get_solver("latency").solve(with_budget(few, 0))
    assert step_s(few, plan) < step_s(all_of_them, plan)
    asked = hot_neurons(few, plan, 0).asked_total
    np.testing.assert_allclose(asked, 2048 * 2 / 8, rtol=0.05)


def test_predictors_of_experts_that_are_not_used_cost_no_time() -> None:
    problem = experts(8, 2)
    layers = tuple(replace(layer, predictor_bytes=10**8) for layer in problem.sizes.layers)
    few = replace(problem, sizes=replace(problem.sizes, layers=layers))
    all_of_them = replace(few, sizes=replace(few.sizes, num_experts=1, num_used=1))
    plan = get_solver("greedy").solve(with_budget(few, few.sizes.full_bytes))
    assert all(layer.has_predictor for layer in plan.layers)
    saved = step_s(all_of_them, plan) - step_s(few, plan)
    read_s = 4 * 10**8 / few.cost.gpu.read_bytes_per_s
    assert saved > 0.7 * read_s


@pytest.mark.parametrize("solver", SOLVERS)
def test_blocks_that_the_cpu_computes_have_no_hot_neurons(solver: str) -> None:
    problem = experts(8, 2)
    layers = tuple(replace(layer, is_handed=True) for layer in problem.sizes.layers)
    sizes = replace(problem.sizes, layers=layers)
    held = sum(layer.attention_bytes + layer.kv_bytes for layer in layers)
    assert sizes.full_bytes == sizes.overhead_bytes + sizes.output_bytes + held
    handed = replace(problem, sizes=sizes)
    for budget in (0, sizes.full_bytes, 10 * problem.sizes.full_bytes):
        plan = get_solver(solver).solve(with_budget(handed, budget))
        assert not any(len(layer.hot) for layer in plan.layers)
        assert sizes.placed_bytes(plan) <= budget
    assert plan.predicted_s
    assert all(layer.has_attention for layer in plan.layers)
