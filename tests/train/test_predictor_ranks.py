"""Choosing ranks: where the search begins, how it goes on, how layers share what is allowed."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from powerinfer.train.predictors.goal import RANK_STEP
from powerinfer.train.predictors.ranks import first_rank, next_rank, rank_limits
from powerinfer.train.predictors.sizes import PredictorSizes


def frequencies(
    density: float, *, skewed: bool = False
) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    values = np.full(1000, density, np.float32)
    if skewed:
        values[:] = 0
        values[:100] = density * 10
    return values


def test_sparse_and_skewed_layers_begin_lower() -> None:
    dense = first_rank(frequencies(0.08), 4096, 4096)
    assert first_rank(frequencies(0.02), 4096, 4096) < dense
    assert first_rank(frequencies(0.08, skewed=True), 4096, 4096) < dense
    assert first_rank(frequencies(0.08), 4096, 256) == 256
    assert first_rank(frequencies(0.0), 4096, 4096) % RANK_STEP == 0


@given(smallest=st.integers(1, 130), limit=st.integers(1, 128), first=st.integers(1, 128))
def test_the_search_ends_near_the_smallest_rank_that_works(
    smallest: int, limit: int, first: int
) -> None:
    rank: int | None = min(first, limit) * RANK_STEP
    reached: dict[int, bool] = {}
    while rank is not None:
        assert rank % RANK_STEP == 0
        assert 0 < rank <= limit * RANK_STEP
        assert rank not in reached
        reached[rank] = rank >= smallest * RANK_STEP
        rank = next_rank(reached, limit * RANK_STEP)
    assert len(reached) <= 14
    if smallest > limit:
        assert reached == dict.fromkeys(reached, False)
        assert limit * RANK_STEP in reached
    else:
        best = min(rank for rank, is_reached in reached.items() if is_reached)
        assert best - smallest * RANK_STEP < max(RANK_STEP, best / 8)


@given(densities=st.lists(st.floats(0, 1), min_size=1, max_size=40), steps=st.integers(0, 2000))
def test_all_layers_together_stay_below_the_limit(densities: list[float], steps: int) -> None:
    cost = PredictorSizes(256, 1024).rank_parameters
    limits = rank_limits(steps * RANK_STEP * cost, cost, densities)
    assert len(limits) == len(densities)
    assert all(limit >= RANK_STEP and limit % RANK_STEP == 0 for limit in limits)
    assert sum(limits) == RANK_STEP * max(steps, len(densities))
    pairs = sorted(zip(densities, limits, strict=True))
    assert all(after >= before - RANK_STEP for (_, before), (_, after) in pairwise(pairs))


def test_a_layer_without_rank_is_not_possible() -> None:
    assert rank_limits(0, 1280, [0.1, 0.2]) == [32, 32]


def test_parameters_of_a_rank_are_a_row_and_a_column() -> None:
    assert PredictorSizes(256, 1024).rank_parameters == 256 + 1024
    experts = PredictorSizes(256, 64, num_experts=16, num_used=2)
    assert experts.rank_parameters == 256 + 16 * 64
    assert experts.rank_reads == 256 + 2 * 64
