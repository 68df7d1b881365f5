"""Steps cut into runs of layers, each on its device, and into groups of tokens."""

from itertools import pairwise, product

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from placement_cases import SOLVERS, model_shape, with_budget
from powerinfer.ops.hybrid.runs import LayerRun, layer_runs, token_groups
from powerinfer.placement.plan import LayerPlacement, PlacementPlan
from powerinfer.placement.solvers import get_solver
from powerinfer.values import Batch

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


def _batch(sequences: list[int]) -> Batch:
    """Tokens of sequences that have a block of their own each; token and position say the row."""
    rows = np.arange(len(sequences), dtype=np.int32)
    tables = 100 + np.arange(max(sequences) + 1, dtype=np.int32)[:, None]
    return Batch(rows, 10 + rows, np.array(sequences, np.int32), tables)


def _shown(batch: Batch) -> list[list[int]]:
    blocks = batch.block_tables[batch.sequences, 0]
    assert len(batch.block_tables) == batch.num_tokens
    return [part.tolist() for part in (batch.token_ids, batch.positions, blocks)]


def test_tokens_of_different_sequences_form_groups() -> None:
    sequences = [4, 0, 2, 1, 3]
    found = token_groups(_batch(sequences), 2)
    assert [rows for rows, _ in found] == [slice(0, 2), slice(2, 4), slice(4, 6)]
    assert [_shown(part) for _, part in found] == [
        [[0, 1], [10, 11], [104, 100]],
        [[2, 3], [12, 13], [102, 101]],
        [[4], [14], [103]],
    ]


def test_a_batch_that_fits_and_tokens_that_see_each_other_stay_whole() -> None:
    for batch, size in ((_batch([1, 0, 2]), 3), (_batch([0, 1, 2, 1]), 2)):
        ((rows, part),) = token_groups(batch, size)
        assert part is batch
        assert rows == slice(None)
