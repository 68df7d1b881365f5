"""The sampler against a slow, obvious version of each step."""

import numpy as np
import numpy.typing as npt
import pytest

from powerinfer.errors import NumericsError, PromptError
from powerinfer.sampling.sampler import Sampler, Softmax, check_finite, largest
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.values import FloatArray

ALL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}


def logits_of(*values: float) -> FloatArray:
    return np.array(values, np.float32)


def drawn(logits: FloatArray, count: int = 300, **params: object) -> set[int]:
    sampler = Sampler(SamplingParams(seed=0, **{**ALL, **params}))  # type: ignore[arg-type]
    return {sampler.sample(logits) for _ in range(count)}


class FixedDraw:
    """A random generator that always draws this share."""

    def __init__(self, share: float) -> None:
        self.share = share

    def random(self) -> float:
        return self.share


def drawn_at(share: float, logits: FloatArray, **params: object) -> int:
    """The token that holds this share of the probabilities, added up as the sampler orders them."""
    sampler = Sampler(SamplingParams(seed=0, **{**ALL, **params}))  # type: ignore[arg-type]
    sampler._random = FixedDraw(share)  # type: ignore[assignment]
    return sampler.sample(logits)


def kept(sampler: Sampler, logits: FloatArray) -> npt.NDArray[np.intp]:
    """The ids that top-p and min-p keep of all."""
    is_kept = sampler._kept(Softmax(logits))
    assert is_kept is not None
    return np.flatnonzero(is_kept)


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    sampler = Sampler(SamplingParams(temperature=0))
    assert sampler.sample(logits_of(1, 3, 3, 2)) == 1


def test_greedy_ignores_the_filters_that_keep_the_best() -> None:
    sampler = Sampler(SamplingParams(temperature=0, top_k=1, top_p=0.01, min_p=1.0))
    assert sampler.sample(logits_of(0, -1, 5)) == 2


def test_top_k_keeps_k_and_prefers_low_ids_among_equals() -> None:
    assert drawn(logits_of(2, 1, 2, 2, 0), top_k=2) == {0, 2}


def test_top_p_keeps_the_token_that_reaches_the_share() -> None:
    probabilities = np.log([0.5, 0.3, 0.15, 0.05])
    assert drawn(logits_of(*probabilities), top_p=0.79) == {0, 1}
    assert drawn(logits_of(*probabilities), top_p=0.81) == {0, 1, 2}
    assert drawn(logits_of(*probabilities), top_p=0.01) == {0}


def test_top_p_is_taken_of_what_top_k_left() -> None:
    # Of the two tokens left the first has 0.5 / 0.8 = 0.625.
    probabilities = np.log([0.5, 0.3, 0.15, 0.05])
    assert drawn(logits_of(*probabilities), top_k=2, top_p=0.6) == {0}


def test_min_p_is_relative_to_the_likeliest() -> None:
    probabilities = np.log([0.5, 0.3, 0.15, 0.05])
    assert drawn(logits_of(*probabilities), min_p=0.29) == {0, 1, 2}
    assert drawn(logits_of(*probabilities), min_p=0.31) == {0, 1}


@pytest.mark.parametrize("top_k", [0, 3])
def test_min_p_is_met_within_a_percent(top_k: int) -> None:
    # The second token has 0.3 / 0.5 = 0.6 of the likeliest one's probability.
    logits = logits_of(*np.log([0.5, 0.3, 0.15, 0.05]))
    assert drawn(logits, top_k=top_k, min_p=0.6 * 0.99) == {0, 1}
    assert drawn(logits, top_k=top_k, min_p=0.6 * 1.01) == {0}


@pytest.mark.parametrize("top_k", [0, 3])
def test_min_p_of_one_keeps_what_is_as_likely_as_the_likeliest(top_k: int) -> None:
    assert drawn(logits_of(1, 2, 0, 2), top_k=top_k, min_p=1.0) == {1, 3}


def test_top_p_is_taken_of_all_that_min_p_drops_too() -> None:
    # The first has 0.5 of everything and 0.625 of the two that min-p keeps.
    probabilities = np.log([0.5, 0.3, 0.15, 0.05])
    assert drawn(logits_of(*probabilities), min_p=0.5, top_p=0.6) == {0, 1}


def test_min_p_drops_what_top_p_would_keep() -> None:
    probabilities = np.log([0.5, 0.3, 0.15, 0.05])
    assert drawn(logits_of(*probabilities), min_p=0.5, top_p=0.99) == {0, 1}


def test_top_p_counts_all_that_top_k_left() -> None:
    # Of 0.5, 0.3 and 0.15 the first has 0.526 and the first two 0.842.
    probabilities = np.log([0.5, 0.3, 0.15, 0.05])
    assert drawn(logits_of(*probabilities), top_k=3, top_p=0.52) == {0}
    assert drawn(logits_of(*probabilities), top_k=3, top_p=0.54) == {0, 1}
    assert drawn(logits_of(*probabilities), top_k=3, top_p=0.83) == {0, 1}
    assert drawn(logits_of(*probabilities), top_k=3, top_p=0.85) == {0, 1, 2}


def test_a_draw_falls_where_the_probabilities_add_up_to_it() -> None:
    # Without a filter they are added up by id: 0.3, 0.8, 1.
    logits = logits_of(*np.log([0.3, 0.5, 0.2]))
    shares = (0.0, 0.29, 0.31, 0.79, 0.81, 0.999)
    assert [drawn_at(share, logits) for share in shares] == [0, 0, 1, 1, 2, 2]
    for filters in ({"min_p": 0.1}, {"top_p": 0.99}):
        assert [drawn_at(share, logits, **filters) for share in shares] == [0, 0, 1, 1, 2, 2]
    # Top-k adds them up from the likeliest: 0.5, 0.8 of what is left.
    assert [drawn_at(share, logits, top_k=2) for share in (0.0, 0.62, 0.63, 0.99)] == [1, 1, 0, 0]


def test_a_draw_on_the_border_is_the_next_token_and_never_beyond_the_last() -> None:
    assert drawn_at(0.5, logits_of(7, 7)) == 1
    # The product of a share just below 1 and the sum may round to the sum.
    assert drawn_at(1.0, logits_of(7, 7)) == 1


def test_a_top_k_that_keeps_everything_changes_nothing() -> None:
    logits = logits_of(*np.log([0.3, 0.5, 0.2]))
    for share in (0.1, 0.4, 0.9):
        assert drawn_at(share, logits, top_k=3) == drawn_at(share, logits)


def test_filters_see_probabilities_before_the_temperature() -> None:
    probabilities = np.log([0.5, 0.3, 0.15, 0.05])
    # At temperature 100 all four are nearly alike; the filter has dropped two before.
    assert drawn(logits_of(*probabilities), min_p=0.31, temperature=100.0) == {0, 1}


def test_draws_follow_the_softmax() -> None:
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    sampler = Sampler(SamplingParams(seed=1, **ALL))  # type: ignore[arg-type]
    logits = np.log(probabilities).astype(np.float32)
    counts = np.bincount([sampler.sample(logits) for _ in range(20000)], minlength=4)
    # Four standard deviations of a binomial share of 20000 draws are at most 0.0142.
    np.testing.assert_allclose(counts / 20000, probabilities, atol=0.0142)


def test_temperature_sharpens_and_survives_extremes() -> None:
    assert drawn(logits_of(0, 1), temperature=1e-30) == {1}
    assert drawn(logits_of(0, 10), temperature=1e30) == {0, 1}


@pytest.mark.parametrize("size", [1, 2, 1023, 1024, 1025, 9000])
def test_nucleus_of_a_large_vocabulary_equals_the_sorted_one(size: int) -> None:
    logits = np.random.default_rng(size).normal(size=size).astype(np.float32) * 3
    sampler = Sampler(SamplingParams(seed=0, top_k=0, top_p=0.9, min_p=0.0))
    order = np.argsort(-logits, kind="stable")
    shares = np.exp(logits[order].astype(np.float64) - logits.max())
    shares /= shares.sum()
    wanted = order[: int(np.searchsorted(np.cumsum(shares), 0.9)) + 1]
    np.testing.assert_array_equal(kept(sampler, logits), np.sort(wanted))


def test_a_flat_nucleus_is_searched_beyond_the_first_thousand() -> None:
    # 9000 tokens of two probabilities, 2 : 1: 0.9 of 13500 is reached after 4500 + 3150 tokens.
    logits = np.where(np.arange(9000) % 2, np.log(2), 0).astype(np.float32)
    sampler = Sampler(SamplingParams(seed=0, top_k=0, top_p=0.9, min_p=0.0))
    ids = kept(sampler, logits)
    assert abs(len(ids) - 7650) <= 1
    np.testing.assert_array_equal(ids[ids % 2 == 1], np.arange(1, 9000, 2))
    np.testing.assert_array_equal(ids[ids % 2 == 0], np.arange(0, 9000, 2)[: len(ids) - 4500])


def test_equals_stay_in_the_order_of_their_ids() -> None:
    logits = (np.arange(3000) % 3).astype(np.float32)
    wanted = np.concatenate([np.arange(rest, 3000, 3) for rest in (2, 1, 0)])
    np.testing.assert_array_equal(largest(logits, 3000), wanted)
    np.testing.assert_array_equal(largest(logits, 2500), wanted[:2500])
    # exp(-2) = 0.135 is dropped, exp(-1) = 0.37 kept.
    sampler = Sampler(SamplingParams(top_k=0, top_p=1.0, min_p=0.2))
    np.testing.assert_array_equal(kept(sampler, logits), np.sort(wanted[:2000]))


def test_largest_takes_no_more_equals_than_there_is_room_for() -> None:
    np.testing.assert_array_equal(largest(logits_of(4, 5, 4, 4), 2), [1, 0])


def test_largest_is_sorted_and_stable() -> None:
    logits = np.array([1, 5, 5, 2, 5, 0], np.float32)
    np.testing.assert_array_equal(largest(logits, 2), [1, 2])
    np.testing.assert_array_equal(largest(logits, 4), [1, 2, 4, 3])
    np.testing.assert_array_equal(largest(logits, 6), [1, 2, 4, 3, 0, 5])


def test_repeat_penalty_divides_positive_and_multiplies_negative() -> None:
    sampler = Sampler(SamplingParams(temperature=0, repeat_penalty=2.0))
    assert sampler.sample(logits_of(3, 2, -9), recent_ids=[0]) == 1
    assert sampler.sample(logits_of(-1, -1.5, -9), recent_ids=[0]) == 1


def test_repeat_penalty_divides_small_positive_logits_too() -> None:
    # 0.5 becomes 0.25, below 0.3; multiplied it would be 1.
    sampler = Sampler(SamplingParams(temperature=0, repeat_penalty=2.0))
    assert sampler.sample(logits_of(0.5, 0.3), recent_ids=[0]) == 1


def test_repeat_penalty_sees_a_window_of_one() -> None:
    sampler = Sampler(SamplingParams(temperature=0, repeat_penalty=2.0, repeat_last_n=1))
    assert sampler.sample(logits_of(3, 2), recent_ids=[1, 0]) == 1
    assert sampler.sample(logits_of(3, 2), recent_ids=[0, 1]) == 0


def test_repeat_penalty_counts_a_token_once_and_sees_a_window() -> None:
    sampler = Sampler(SamplingParams(temperature=0, repeat_penalty=2.0, repeat_last_n=2))
    assert sampler.sample(logits_of(3, 1), recent_ids=[0, 0]) == 0
    assert sampler.sample(logits_of(3, 2), recent_ids=[0, 1, 1]) == 0
    no_window = Sampler(SamplingParams(temperature=0, repeat_penalty=2.0, repeat_last_n=0))
    assert no_window.sample(logits_of(3, 2), recent_ids=[0]) == 0


@pytest.mark.parametrize("count", [1, 40, 155, 156, 157])
def test_the_largest_are_found_by_groups(count: int) -> None:
    """Ten thousand logits, many of them equal, in 156 groups."""
    logits = np.random.default_rng(3).integers(0, 50, 10_000).astype(np.float32)
    wanted = np.argsort(-logits, kind="stable")[:count]
    np.testing.assert_array_equal(largest(logits, count), wanted)


def test_finite_logits_whose_sum_is_not_are_accepted() -> None:
    huge = 3e38
    assert Sampler(SamplingParams(temperature=0)).sample(logits_of(-huge, huge, huge, huge)) == 1


def test_banned_ids_are_never_chosen() -> None:
    sampler = Sampler(SamplingParams(seed=0, **ALL), banned_ids={1})  # type: ignore[arg-type]
    assert {sampler.sample(logits_of(0, 50, 0)) for _ in range(50)} == {0, 2}
    greedy = Sampler(SamplingParams(temperature=0), banned_ids={1})
    assert greedy.sample(logits_of(0, 50, 0)) == 0


def test_a_vocabulary_that_is_banned_as_a_whole_is_an_error() -> None:
    with pytest.raises(PromptError, match="no token is left"):
        Sampler(SamplingParams(temperature=0), banned_ids={0, 1}).sample(logits_of(1, 2))


def test_logits_are_not_changed() -> None:
    logits = logits_of(3, 2, 1)
    Sampler(SamplingParams(repeat_penalty=2.0, seed=0), {1}).sample(logits, [0])
    np.testing.assert_array_equal(logits, [3, 2, 1])


def test_same_seed_same_draws_and_a_new_seed_is_reported() -> None:
    logits = np.zeros(1000, np.float32)
    first, second = (Sampler(SamplingParams(seed=7, top_k=0)) for _ in range(2))
    assert [first.sample(logits) for _ in range(20)] == [second.sample(logits) for _ in range(20)]
    drawn_seed = Sampler(SamplingParams(top_k=0))
    again = Sampler(SamplingParams(top_k=0, seed=drawn_seed.seed))
    assert drawn_seed.sample(logits) == again.sample(logits)


def test_a_seed_that_is_drawn_has_32_bits() -> None:
    seeds = {Sampler(SamplingParams()).seed for _ in range(64)}
    assert len(seeds) > 60
    assert 2**24 < max(seeds) < 2**32


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_logits_are_an_error(bad: float) -> None:
    with pytest.raises(NumericsError, match="1 of 3 logits"):
        Sampler(SamplingParams()).sample(logits_of(0, bad, 1))
    with pytest.raises(NumericsError):
        check_finite(np.array([[0, bad]], np.float32))


@pytest.mark.parametrize("filters", [{}, {"min_p": 0.0}, {"top_k": 0}, {"top_k": 0, "top_p": 1.0}])
def test_the_least_temperature_takes_the_likeliest(filters: dict[str, float]) -> None:
    logits = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    params = SamplingParams(temperature=5e-324, seed=1, **filters)  # type: ignore[arg-type]
    assert Sampler(params).sample(logits) == int(logits.argmax())
