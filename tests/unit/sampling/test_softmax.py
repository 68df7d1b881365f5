"""Exponentials added up in groups, and draws by them, against plain float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerinfer.sampling.sampler import (
    Sampler,
    Softmax,
    draw,
    exponentials,
    group_sums,
    place_of_share,
)
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.values import FloatArray

SIZES = (1, 2, 511, 512, 513, 1024, 5000)


def row_of(size: int) -> FloatArray:
    return (np.random.default_rng(size).normal(size=size) * 4).astype(np.float32)


@pytest.mark.parametrize("size", SIZES)
def test_sums_are_those_of_float64(size: int) -> None:
    row = row_of(size)
    exact = np.exp(row.astype(np.float64) - row.max())
    softmax = Softmax(row)
    # A difference of 30 is rounded by 2e-6.
    np.testing.assert_allclose(softmax.weights, exact, rtol=4e-6)
    assert softmax.total == pytest.approx(exact.sum(), rel=1e-6)
    assert softmax.log_sum == pytest.approx(float(row.max()) + np.log(exact.sum()), abs=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_groups_are_ranges_of_ids(size: int) -> None:
    weights = np.ones(size, np.float32)
    wanted = [512] * (size // 512) + [size % 512]
    np.testing.assert_array_equal(group_sums(weights), wanted)


def test_banned_tokens_weigh_nothing_at_any_temperature() -> None:
    row = np.array([-np.inf, 1, 3, -np.inf], np.float32)
    for temperature in (1e-300, 1e-30, 0.5, 1, 2, 1e30, 1e300):
        weights = exponentials(row, 3.0, temperature)
        assert weights[0] == weights[3] == 0
        assert weights[2] == 1
        assert 0 <= weights[1] <= 1


@given(
    size=st.sampled_from(SIZES),
    share=st.one_of(st.floats(0, 1), st.just(np.nextafter(1, 0))),
    density=st.floats(0, 1),
    seed=st.integers(0, 100),
)
def test_a_draw_is_the_place_that_holds_the_share(
    size: int, share: float, density: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    weights = (random.random(size) * (random.random(size) < density)).astype(np.float32)
    weights[random.integers(size)] = 1
    place = draw(weights, share)
    assert weights[place] > 0
    sums = np.cumsum(weights.astype(np.float64))
    slack = 1e-6 * sums[-1]
    assert sums[place] >= share * sums[-1] - slack
    assert sums[place] - weights[place] <= share * sums[-1] + slack


@pytest.mark.parametrize("size", SIZES)
def test_places_of_shares_are_those_of_a_running_sum(size: int) -> None:
    weights = np.linspace(1, 2, size, dtype=np.float32)
    sums = np.cumsum(weights.astype(np.float64))
    for place in {0, size // 3, size // 2, size - 1}:
        wanted = sums[place] - weights[place] / 2
        assert place_of_share(weights, wanted) == int(np.searchsorted(sums, wanted))
    assert place_of_share(weights, sums[-1] * 1.001) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "temperature", [0.7, *(pytest.param(each, marks=pytest.mark.thorough) for each in (1.0, 1.5))]
)
def test_draws_over_many_groups_follow_the_softmax(temperature: float) -> None:
    row = row_of(1500) / np.float32(4)
    sampler = Sampler(SamplingParams(seed=5, temperature=temperature, top_k=0, top_p=1, min_p=0))
    count = 60_000
    found = np.bincount([sampler.sample(row) for _ in range(count)], minlength=len(row))
    shares = np.exp(row.astype(np.float64) / temperature)
    wanted = shares / shares.sum() * count
    # Neighbours are counted together, so that every cell expects enough draws.
    cells = np.searchsorted(np.arange(0, count, 20), np.cumsum(wanted))
    expected, observed = np.bincount(cells, wanted), np.bincount(cells, found)
    is_used = expected > 5
    statistic = ((observed - expected)[is_used] ** 2 / expected[is_used]).sum()
    degrees = int(is_used.sum()) - 1
    # Chi-squared has this mean; its variance is twice that. The seed is fixed.
    assert abs(statistic - degrees) < 4 * np.sqrt(2 * degrees)


@pytest.mark.parametrize(("top_p", "min_p"), [(0.9, 0.0), (0.5, 0.01), (0.99, 0.2), (1.0, 0.1)])
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_filters_of_a_whole_vocabulary_keep_what_sorting_keeps(
    top_p: float, min_p: float, scale: float
) -> None:
    row = (np.random.default_rng(9).normal(size=6000) * scale).astype(np.float32)
    sampler = Sampler(SamplingParams(seed=0, top_k=0, top_p=top_p, min_p=min_p))
    is_kept = sampler._kept(Softmax(row))
    assert is_kept is not None
    shares = np.exp(row.astype(np.float64) - row.max())
    order = np.argsort(-row, kind="stable")
    sums = np.cumsum(shares[order]) / shares.sum()
    length = int(np.searchsorted(sums, top_p)) + 1 if top_p < 1 else len(row)
    wanted = np.zeros(len(row), bool)
    wanted[order[:length]] = True
    wanted &= shares >= min_p
    # One token may lie on the border, where rounding decides.
    assert np.count_nonzero(is_kept != wanted) <= 1
