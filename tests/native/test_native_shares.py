"""Which share of its neurons a block and the layers of a model needed for a decode step."""

from pathlib import Path

import numpy as np
import pytest

from native_cases import both, given_rows, make_ffn, numbers
from powerinfer.gguf import open_gguf
from powerinfer.models import load_model
from powerinfer.ops.backend import as_backend
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.protocol import NeuronShares
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.values import Activation, ActivationKind
from tiny_models import TINY_MODELS, write_model

RELU = Activation(ActivationKind.RELU, 0.0)
HIDDEN, NEURONS = 72, 130


@pytest.mark.parametrize("num_tokens", [1, 2, 5, 32])
def test_shares_are_those_of_the_gates_that_fire(num_tokens: int) -> None:
    native, oracle = both("portable")
    x = numbers((num_tokens, HIDDEN), 3)
    sizes = (HIDDEN, NEURONS)
    ffn = make_ffn(native, RELU, sizes, is_exact_sparse=True)
    assert native.neuron_shares(ffn) is None
    native.ffn(x, ffn)
    same = make_ffn(oracle, RELU, sizes, is_exact_sparse=True)
    assert same.gate is not None
    fires = oracle.linear(x, [same.gate])[0] > 0
    shares = native.neuron_shares(ffn)
    assert shares is not None
    assert shares.active == pytest.approx(fires.mean())
    assert shares.union == pytest.approx(fires.any(axis=0).mean())
    oracle.ffn(x, same)
    assert oracle.neuron_shares(same) is None


def test_prompts_leave_the_shares_of_the_last_decode_rows() -> None:
    native, _ = both("portable")
    ffn = make_ffn(native, RELU, (HIDDEN, NEURONS), is_exact_sparse=True)
    native.ffn(numbers((9, HIDDEN), 4), ffn, is_prompt=given_rows(9))
    assert native.neuron_shares(ffn) is None
    native.ffn(numbers((2, HIDDEN), 5), ffn)
    before = native.neuron_shares(ffn)
    native.ffn(numbers((9, HIDDEN), 4), ffn, is_prompt=given_rows(9))
    assert before == native.neuron_shares(ffn) != NeuronShares(0.0, 0.0)


def test_unions_of_more_rows_than_one_batch_are_averaged() -> None:
    native, oracle = both("portable")
    ffn = make_ffn(native, RELU, (HIDDEN, NEURONS), is_exact_sparse=True)
    x = numbers((40, HIDDEN), 6)
    native.ffn(x, ffn)
    gate = make_ffn(oracle, RELU, (HIDDEN, NEURONS)).gate
    assert gate is not None
    fires = oracle.linear(x, [gate])[0] > 0
    unions = [fires[:32].any(axis=0).mean(), fires[32:].any(axis=0).mean()]
    shares = native.neuron_shares(ffn)
    assert shares is not None
    assert shares.union == pytest.approx(np.mean(unions))


def test_a_block_that_skips_nothing_computes_all() -> None:
    native, _ = both("portable")
    ffn = make_ffn(native, Activation(ActivationKind.SILU, 0.0), (HIDDEN, NEURONS))
    native.ffn(numbers((3, HIDDEN), 7), ffn)
    assert native.neuron_shares(ffn) == NeuronShares(1.0, 1.0)


@pytest.mark.parametrize("name", ["llama-relu", "mixtral-drelu-transposed"])
def test_every_layer_of_a_model_says_what_it_needed(name: str, tmp_path: Path) -> None:
    write_model(tmp_path / "tiny.gguf", TINY_MODELS[name])
    file = open_gguf(tmp_path / "tiny.gguf")
    model = load_model(file, as_backend(NativeOps(2)), sparsity="exact")
    assert model.layer_shares() is None
    cache = model.new_cache(256)
    # Twice: the second step is one that was recorded.
    for position in range(2):
        parts = [(sequence, [5 + sequence], position) for sequence in range(4)]
        model.forward(cache.batch(parts, [False] * 4), cache)
        shares = model.layer_shares()
        assert shares is not None
        assert shares.active.shape == shares.union.shape == (TINY_MODELS[name].num_layers,)
        assert np.all(shares.active > 0)
        assert np.all(shares.active < shares.union)
        assert np.all(shares.union <= 1)
    whole = load_model(file, as_backend(ReferenceOps()), sparsity="exact")
    assert whole.layer_shares() is None
