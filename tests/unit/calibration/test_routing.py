"""Arrays over the neurons of a token's own experts, and back to ids of all neurons."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerinfer.calibration.routing import Routing
from powerinfer.ops.protocol import ActiveIds


@st.composite
def _routings(draw: st.DrawFn) -> Routing:
    num_experts = draw(st.integers(1, 6))
    num_used = draw(st.integers(1, num_experts))
    num_tokens, size = draw(st.integers(0, 5)), draw(st.integers(1, 4))
    stream = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    experts = [np.sort(stream.permutation(num_experts)[:num_used]) for _ in range(num_tokens)]
    ids = np.array(experts, np.int32).reshape(num_tokens, num_used)
    weights = stream.random(ids.shape).astype(np.float32)
    return Routing(ids, weights, num_experts, num_experts * size)


def _columns(routing: Routing) -> list[list[int]]:
    """Neuron ids of the candidates of each token, by the definition."""
    size = routing.num_neurons // routing.num_experts
    return [[int(e) * size + i for e in own for i in range(size)] for own in routing.experts]


def _mask(routing: Routing, seed: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    shape = (len(routing.experts), routing.num_candidates)
    return np.random.default_rng(seed).random(shape) < 0.5


@given(_routings())
def test_columns_are_the_neurons_of_the_own_experts(routing: Routing) -> None:
    num_tokens = len(routing.experts)
    shape = (num_tokens, routing.num_neurons)
    values = np.arange(num_tokens * routing.num_neurons).reshape(shape)
    of_neurons = routing.of_neurons(np.arange(routing.num_neurons))
    for token, ids in enumerate(_columns(routing)):
        assert routing.take(values)[token].tolist() == values[token, ids].tolist()
        assert np.broadcast_to(of_neurons, (num_tokens, len(ids)))[token].tolist() == ids


@given(_routings(), st.integers(0, 99))
def test_ids_are_listed_and_counted(routing: Routing, seed: int) -> None:
    mask = _mask(routing, seed)
    active = routing.ids(mask)
    counts = [0] * routing.num_neurons
    for token, ids in enumerate(_columns(routing)):
        expected = [i for i, listed in zip(ids, mask[token], strict=True) if listed]
        assert active.of(token).tolist() == expected
        for found in expected:
            counts[found] += 1
    assert active.ids.dtype == np.int32
    assert routing.count(mask).tolist() == counts
    np.testing.assert_array_equal(routing.mask(active), mask)


@given(_routings(), st.integers(0, 99))
def test_neurons_of_other_experts_are_ignored(routing: Routing, seed: int) -> None:
    shape = (len(routing.experts), routing.num_neurons)
    everywhere = np.random.default_rng(seed).random(shape) < 0.5
    found = routing.ids(routing.mask(ActiveIds.of_mask(everywhere)))
    for token, ids in enumerate(_columns(routing)):
        assert found.of(token).tolist() == [i for i in ids if everywhere[token, i]]


@given(_routings())
def test_values_are_weighed_by_their_expert(routing: Routing) -> None:
    ones = np.ones((len(routing.experts), routing.num_candidates), np.float32)
    weighed = routing.weigh(ones)
    size = routing.num_neurons // routing.num_experts
    for token, weights in enumerate(routing.weights):
        assert weighed[token].tolist() == [weight for weight in weights for _ in range(size)]


def test_one_place_or_some_tokens() -> None:
    experts = np.array([[0, 2], [1, 2], [0, 1]], np.int32)
    routing = Routing(experts, experts.astype(np.float32), 3, 6)
    assert routing.place(1).experts.tolist() == [[2], [2], [1]]
    assert routing.place(1).num_candidates == 2
    assert routing.rows(slice(1, 3)).experts.tolist() == [[1, 2], [0, 1]]
    assert routing.rows(np.array([2, 0])).weights.tolist() == [[0, 1], [0, 2]]
    with pytest.raises(IndexError):
        routing.place(0).rows(np.array([3]))
