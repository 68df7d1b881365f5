"""Plans cut into runs of layers: every layer once, on its device, the head behind the last."""

from itertools import pairwise, product

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from placement_cases import SOLVERS, model_shape, with_budget
from powerinfer.ops.hybrid.blocks import LayerRun, layer_runs
from powerinfer.placement.plan import LayerPlacement, PlacementPlan
from powerinfer.placement.solver import get_solver

NONE = np.zeros(0, np.int32)


def _plan(states: str, *, has_output: bool) -> PlacementPlan:
    layers = tuple(LayerPlacement(state == "G", False, NONE) for state in states)
    return PlacementPlan("", "test", 0, 8, has_output, layers)


def _check(plan: PlacementPlan) -> None:
    runs = layer_runs(plan)
    covered = [number for run in runs for number in range(run.first, run.last)]
    assert covered == list(range(len(plan.layers)))
    for run in runs:
        places = {plan.layers[number].has_attention for number in range(run.first, run.last)}
        assert places <= {run.is_on_device}
    assert [run.number for run in runs] == list(range(len(runs)))
    assert all(one.is_on_device != other.is_on_device for one, other in pairwise(runs))
    assert [run.has_end for run in runs] == [False] * (len(runs) - 1) + [True]
    assert runs[-1].is_on_device == plan.has_output


def test_runs_of_plans_by_hand() -> None:
    assert layer_runs(_plan("CGGC", has_output=False)) == (
        LayerRun(0, 0, 1, is_on_device=False),
        LayerRun(1, 1, 3, is_on_device=True),
        LayerRun(2, 3, 4, is_on_device=False, has_end=True),
    )
    assert layer_runs(_plan("GG", has_output=True)) == (LayerRun(0, 0, 2, True, has_end=True),)
    assert layer_runs(_plan("CC", has_output=True)) == (
        LayerRun(0, 0, 2, is_on_device=False),
        LayerRun(1, 2, 2, is_on_device=True, has_end=True),
    )


def test_runs_of_every_plan_of_few_layers() -> None:
    for length in range(1, 7):
        for states, has_output in product(product("CG", repeat=length), (False, True)):
            _check(_plan("".join(states), has_output=has_output))


@pytest.mark.parametrize("solver", SOLVERS)
def test_runs_of_the_plans_of_solvers(solver: str) -> None:
    for has_predictor, is_parallel in product((False, True), repeat=2):
        problem = model_shape(4, 512, 1024, has_predictor=has_predictor, is_parallel=is_parallel)
        for share in (0.0, 0.1, 0.3, 0.5, 0.8, 1.0):
            budget = int(share * problem.budget_bytes)
            _check(get_solver(solver).solve(with_budget(problem, budget)))
