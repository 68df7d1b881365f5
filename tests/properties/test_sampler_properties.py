"""Properties of the sampler and of stop strings."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from powerinfer.sampling.sampler import Sampler, largest
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.sampling.stop import StopMatcher
from powerinfer.values import FloatArray

logits_lists = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40)
# Few letters, so that stop strings and their beginnings are frequent.
texts = st.text("abc", max_size=30)
stop_lists = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


@given(
    values=logits_lists,
    top_k=st.just(0) | st.integers(1, 50),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 1.0),
    seed=st.integers(0, 1000),
)
def test_what_is_drawn_passes_every_filter(
    values: list[float], top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    logits = np.array(values, np.float32)
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    token_id = Sampler(params).sample(logits)
    rank = int(np.flatnonzero(np.argsort(-logits, kind="stable") == token_id)[0])
    assert top_k == 0 or rank < top_k
    ratio = np.exp(np.float64(logits[token_id]) - logits.max())
    assert ratio >= min_p * (1 - 1e-6)


@given(values=logits_lists, count=st.integers(1, 50))
def test_largest_equals_a_stable_sort(values: list[float], count: int) -> None:
    logits = np.array(values, np.float32)
    np.testing.assert_array_equal(
        largest(logits, count), np.argsort(-logits, kind="stable")[:count]
    )


def chosen_by_sorting(logits: FloatArray, params: SamplingParams, share: float) -> int:
    """The choice among the k likeliest, in plain numpy."""
    ids = np.argsort(-logits, kind="stable")[: params.top_k]
    values = logits[ids].astype(np.float64)
    if params.top_p < 1:
        sums = np.cumsum(np.exp(values - values[0]))
        values = values[: int(np.searchsorted(sums, params.top_p * sums[-1])) + 1]
    if params.min_p > 0:
        values = values[values >= values[0] + np.log(params.min_p)]
    with np.errstate(over="ignore"):
        total = np.cumsum(np.exp((values - values[0]) / params.temperature))
    drawn = np.searchsorted(total, share * total[-1], side="right")
    return int(ids[min(drawn, np.searchsorted(total, total[-1]))])


@given(
    values=st.lists(st.floats(-30, 30, width=32) | st.sampled_from((-0.0, 3e38, -3e38, 1e-45))),
    repeats=st.integers(1, 3),
    top_k=st.integers(1, 60),
    top_p=st.floats(0.01, 1.0) | st.just(1.0),
    min_p=st.floats(0.0, 1.0) | st.sampled_from((0.0, 1.0)),
    temperature=st.floats(0.1, 3) | st.sampled_from((5e-324, 1e-300, 1e-30, 1e30, 1e300)),
    seed=st.integers(0, 1000),
)
def test_the_choice_among_the_likeliest_has_the_bits_of_numpy(
    values: list[float],
    repeats: int,
    top_k: int,
    top_p: float,
    min_p: float,
    temperature: float,
    seed: int,
) -> None:
    # At least one more than top_k, which then takes part.
    logits = np.tile(np.array([*values, *[-50] * (top_k + 1)], np.float32), repeats)
    params = SamplingParams(
        top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature, seed=seed
    )
    sampler, random = Sampler(params), np.random.Generator(np.random.PCG64(seed))
    for _ in range(5):
        assert sampler.sample(logits) == chosen_by_sorting(logits, params, random.random())


@given(
    num_draws=st.lists(st.integers(0, 5), min_size=1, max_size=4), top_k=st.sampled_from((0, 40))
)
def test_undone_draws_are_drawn_again(num_draws: list[int], top_k: int) -> None:
    logits = np.zeros(100, np.float32)
    sampler, other = (Sampler(SamplingParams(seed=3, top_k=top_k)) for _ in range(2))
    for count in num_draws:
        kept = sampler.state
        undone = [sampler.sample(logits) for _ in range(count)]
        sampler.state = kept
        assert undone == [sampler.sample(logits) for _ in range(count)]
        assert undone == [other.sample(logits) for _ in range(count)]


def cut_at_first_stop(text: str, stops: list[str]) -> str:
    """The definition: read character by character, cut where first some stop string is complete."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))]
    return text


@given(text=texts, stops=stop_lists, data=st.data())
def test_any_split_of_the_text_gives_the_same_cut(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    matcher = StopMatcher(stops)
    wanted = cut_at_first_stop(text, stops)
    shown, rest = "", text
    while rest:
        length = data.draw(st.integers(1, len(rest)))
        shown += matcher.push(rest[:length])
        rest = rest[length:]
        # Nothing that is cut later was ever shown.
        assert wanted.startswith(shown)
    assert matcher.is_stopped == (wanted != text)
    shown += matcher.push("") + matcher.finish()
    assert shown == wanted


@given(text=texts, stops=stop_lists)
def test_only_what_may_become_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = matcher.push(text)
    if not matcher.is_stopped:
        held = text[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)
