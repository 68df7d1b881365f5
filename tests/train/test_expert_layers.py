"""Training the predictor of a layer with experts, of which each token shows only its own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed")

import torch

from planted_layer import TOKENS, TRAIN, planted_experts
from powerinfer.calibration.firing import unpack
from powerinfer.calibration.routing import Routing
from powerinfer.train.predictors import training
from powerinfer.train.predictors.batches import read_tokens
from powerinfer.train.predictors.collecting import chosen_bits
from powerinfer.train.predictors.fitting import fit_layer
from powerinfer.train.predictors.goal import THRESHOLD, Goal
from powerinfer.train.predictors.network import OFFSET, Network
from powerinfer.train.predictors.reads import LayerReads
from powerinfer.train.predictors.sizes import PredictorSizes

EXPERTS, USED, SIZE = 5, 2, 13


def test_a_layer_is_measured_over_the_experts_of_each_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training, "_LEAST_STEPS", 150)
    data = planted_experts(EXPERTS, USED, SIZE)
    assert data.experts is not None
    fitted = fit_layer(data, Goal(), rank_limit=32)
    assert fitted.fc2.shape == (EXPERTS * SIZE, 32)
    x = data.inputs[TRAIN:].astype(np.float64)
    hidden = np.maximum(x @ fitted.fc1.astype(np.float64).T, 0)
    passes = (hidden @ fitted.fc2.astype(np.float64).T >= THRESHOLD).reshape(-1, EXPERTS, SIZE)
    experts = data.experts[TRAIN:]
    own = passes[np.arange(TOKENS - TRAIN)[:, np.newaxis], experts]
    bits = data.fired[TRAIN:].reshape(len(experts), USED, -1)
    fires = np.unpackbits(bits, axis=2, count=SIZE, bitorder="little").astype(bool)
    figures = fitted.figures
    assert figures.active == pytest.approx(fires.mean(), abs=1e-12)
    assert figures.density == pytest.approx(own.mean(), abs=1e-3)
    assert figures.recall == pytest.approx((own & fires).sum() / fires.sum(), abs=1e-3)
    # A predictor that does not look at the token finds as many as it lets pass.
    assert figures.recall > figures.density + 0.5
    assert figures.density < 0.3
    # Nothing is known of the last expert: all of it runs.
    assert passes[:, -1].all()
    assert not fitted.fc2[-SIZE:].any()


def test_gradients_are_those_of_the_chosen_experts() -> None:
    data = planted_experts(EXPERTS, USED, SIZE)
    block = read_tokens(data, np.arange(40), "a test")
    x = block.inputs.float()
    network = Network.random(8, data.hidden_size, data.num_neurons, seed=2)
    loss = network.learn(x, block.shares(), torch.float32)
    fc1, fc2 = (matrix.clone().requires_grad_() for matrix in (network.fc1, network.fc2))
    scores = (torch.relu(x @ fc1.T) @ fc2.T + OFFSET).reshape(40, EXPERTS, SIZE)
    assert block.experts is not None
    own = torch.take_along_dim(scores, block.experts.long()[:, :, None], 1)
    bits = block.fired.numpy().reshape(40, USED, -1)
    wanted = np.unpackbits(bits, axis=2, count=SIZE, bitorder="little").astype(np.float32)
    fires = torch.from_numpy(wanted)
    losses = torch.nn.functional.binary_cross_entropy_with_logits(
        own, fires, weight=1 + 11 * fires, reduction="none"
    )
    first, second = torch.autograd.grad(losses.sum() / 40, (fc1, fc2))
    assert network.fc1.grad is not None
    assert network.fc2.grad is not None
    torch.testing.assert_close(network.fc1.grad, first, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(network.fc2.grad, second, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(loss, losses.mean().detach(), rtol=1e-5, atol=1e-6)


@given(
    size=st.sampled_from((1, 7, 8, 13, 16)),
    num_experts=st.integers(2, 6),
    num_tokens=st.integers(1, 150),
    seed=st.integers(0, 99),
    chosen=st.data(),
)
def test_only_bits_of_chosen_experts_are_kept(
    size: int, num_experts: int, num_tokens: int, seed: int, chosen: st.DataObject
) -> None:
    num_used = chosen.draw(st.integers(1, num_experts))
    stream = np.random.default_rng(seed)
    fires = stream.random((num_tokens, num_experts, size)) < 0.3
    order = stream.random((num_tokens, num_experts)).argsort(axis=1)[:, :num_used]
    experts = np.sort(order, axis=1).astype(np.int32)
    weights = np.ones(experts.shape, np.float32)
    routing = Routing(experts, weights, num_experts, num_experts * size)
    packed = np.packbits(fires.reshape(num_tokens, -1), axis=1, bitorder="little")
    kept = chosen_bits(packed, routing)
    sizes = PredictorSizes(1, size, num_experts, num_used)
    assert kept.shape == (num_tokens, sizes.fired_bytes)
    by_expert = kept.reshape(num_tokens * num_used, -1)
    expected = fires[np.arange(num_tokens)[:, np.newaxis], experts].reshape(-1, size)
    np.testing.assert_array_equal(unpack(by_expert, size), expected)


def test_a_rank_must_save_more_than_it_reads() -> None:
    """The sizes of Nemotron-3-Nano: 6 of 128 experts of 1856 neurons, up in Q4_0."""
    sizes = PredictorSizes(2688, 1856, num_experts=128, num_used=6)
    reads = LayerReads(sizes, 2688 * 18 / 32)
    limit = reads.largest_rank(0.09, Goal())
    saved = reads.saved(0.18)
    assert saved == pytest.approx(0.82 * 6 * 1856 * 2688 * 0.5625)
    per_rank = (2688 + 6 * 1856) * 0.5625
    assert limit * per_rank <= saved < (limit + 32) * per_rank
    assert reads.read(32) == 32 * 2 * (2688 + 6 * 1856)
    # Where every second neuron fires, nothing can be saved.
    assert reads.largest_rank(0.5, Goal()) == 32
