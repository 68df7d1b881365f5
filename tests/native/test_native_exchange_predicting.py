"""Layers of an exchange whose own predictor decides what is computed, instead of cold bits."""

from dataclasses import replace

import numpy as np
import pytest

from exchange_cases import ACTIVATIONS, MAX_TOKENS, RELU, Device, make_buffers
from native_cases import make_ffn, make_linear, numbers, same_bits, use_kernels
from powerinfer.errors import ShapeError
from powerinfer.ops.cpu.exchange import ExchangeBuffers, NativeExchange
from powerinfer.ops.cpu.handles import NativeFFN
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.operands import NeuronPredictor, ScoreStage
from powerinfer.ops.protocol import FFNCounters
from powerinfer.values import Activation, FloatArray

HIDDEN, NEURONS, RANK = 256, 500, 64


def make_block(
    ops: NativeOps,
    activation: Activation = RELU,
    *,
    has_fc1: bool = True,
    threshold: float = 0.5,
    num_stages: int = 1,
    is_gated: bool = True,
    is_down_transposed: bool = True,
    seed: int = 50,
) -> NativeFFN:
    """A block with biases whose predictor lets a part of the neurons pass."""
    columns = RANK if has_fc1 else HIDDEN
    fc1 = make_linear(ops, "f16", (RANK, HIDDEN), seed).matrix if has_fc1 else None
    stages = [
        ScoreStage(
            make_linear(ops, "f32", (NEURONS, columns), seed + 1 + i).matrix,
            ops.constant(numbers((NEURONS,), seed + 9)),
            threshold,
        )
        for i in range(num_stages)
    ]
    center = None if has_fc1 else ops.constant(numbers((HIDDEN,), seed + 10))
    block = make_ffn(
        ops,
        activation,
        (HIDDEN, NEURONS),
        is_gated=is_gated,
        is_down_transposed=is_down_transposed,
        is_exact_sparse=activation.is_sparse,
        has_bias=True,
    )
    predictor = ops.neuron_predictor(NeuronPredictor(fc1, center, tuple(stages), native=None))
    return replace(block, predictor=predictor)


def predicting_buffers(
    max_tokens: int = MAX_TOKENS, num_layers: int | None = None
) -> ExchangeBuffers:
    """Buffers whose predictors look at something else than the blocks; y is NaN."""
    buffers = make_buffers(HIDDEN, NEURONS, num_layers)
    return replace(
        buffers,
        x=numbers((max_tokens, HIDDEN), 6),
        cold=np.zeros((max_tokens, 1), np.uint32),  # too few words for cold bits
        y=np.full((max_tokens, HIDDEN), np.nan, np.float32),
        predictor_input=numbers((max_tokens, HIDDEN), 7),
    )


def wanted(ops: NativeOps, ffn: NativeFFN, buffers: ExchangeBuffers, num_tokens: int) -> FloatArray:
    """What the CPU backend alone gives, without the bias of down."""
    unbiased = ops.ffn_weights(replace(ffn, down=replace(ffn.down, bias=None)))
    assert buffers.predictor_input is not None
    seen = buffers.predictor_input[:num_tokens]
    return ops.ffn(buffers.x[:num_tokens], unbiased, seen)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("is_down_transposed", [True, False])
def test_run_has_the_bits_of_the_cpu_alone(
    kernels: str, activation: Activation, is_down_transposed: bool
) -> None:
    ops = use_kernels(kernels)
    for is_gated in (True, False):
        for num_stages, has_fc1 in ((1, True), (2, False)):
            ffn = make_block(
                ops,
                activation,
                has_fc1=has_fc1,
                num_stages=num_stages,
                is_gated=is_gated,
                is_down_transposed=is_down_transposed,
            )
            buffers = predicting_buffers()
            exchange = ops.exchange(buffers)
            layer = exchange.add_layer(ffn, is_predicting=True)
            for num_tokens in (1, 3, MAX_TOKENS):
                buffers.y[:] = np.nan
                exchange.run(layer, num_tokens)
                want = wanted(ops, ffn, buffers, num_tokens)
                assert np.any(want)
                assert same_bits(buffers.y[:num_tokens], want)
                assert np.isnan(buffers.y[num_tokens:]).all()


def test_more_tokens_than_are_computed_one_by_one() -> None:
    ops = NativeOps(2)
    ffn = make_block(ops)
    buffers = predicting_buffers(max_tokens=70)
    exchange = ops.exchange(buffers)
    layer = exchange.add_layer(ffn, is_predicting=True)
    for num_tokens in (16, 17, 70):
        exchange.run(layer, num_tokens)
        assert same_bits(buffers.y[:num_tokens], wanted(ops, ffn, buffers, num_tokens))


@pytest.mark.parametrize("threshold", [-1e9, 1e9])
def test_a_predictor_that_lets_all_or_none_pass(threshold: float) -> None:
    ops = NativeOps(2)
    ffn = make_block(ops, threshold=threshold)
    buffers = predicting_buffers()
    exchange = ops.exchange(buffers)
    exchange.add_layer(ffn, is_predicting=True)
    exchange.run(0, 2)
    assert same_bits(buffers.y[:2], wanted(ops, ffn, buffers, 2))
    assert buffers.y[:2].any() == (threshold < 0)


def test_cold_bits_decide_nothing() -> None:
    ops = NativeOps(2)
    ffn = make_block(ops)
    buffers = replace(predicting_buffers(), cold=make_buffers(HIDDEN, NEURONS).cold)
    exchange = ops.exchange(buffers)
    layer = exchange.add_layer(ffn, is_predicting=True)
    want = wanted(ops, ffn, buffers, 2)
    for bits in (0, 0xFFFFFFFF):
        buffers.cold[:] = bits
        exchange.run(layer, 2)
        assert same_bits(buffers.y[:2], want)
    # Nor does the predictor where the layer was added for the bits.
    listed = exchange.add_layer(ffn)
    buffers.cold[:] = 0
    exchange.run(listed, 2)
    assert not buffers.y[:2].any()


def test_counts_the_predictor_as_the_cpu_does() -> None:
    ops = NativeOps(2)
    ffn = make_block(ops, num_stages=2)
    buffers = predicting_buffers()
    exchange = ops.exchange(buffers)
    layer = exchange.add_layer(ffn, is_predicting=True)
    exchange.run(layer, 3)
    counted = FFNCounters()
    exchange.collect(counted)
    ops.counters = FFNCounters()
    wanted(ops, ffn, buffers, 3)
    assert counted == ops.counters
    assert counted.predictor_bytes > RANK * HIDDEN * 2
    assert 0 < counted.predicted < counted.total == 3 * NEURONS
    assert counted.predictor_s > 0


def mixed(
    num_layers: int = 3,
) -> tuple[NativeOps, ExchangeBuffers, NativeExchange, list[NativeFFN]]:
    """Layers that predict, but for one in their middle that goes by cold bits."""
    ops = NativeOps(2)
    buffers = predicting_buffers(num_layers=num_layers)
    buffers = replace(buffers, cold=make_buffers(HIDDEN, NEURONS).cold)
    exchange = ops.exchange(buffers)
    blocks = [make_block(ops, seed=50 + 20 * i) for i in range(num_layers)]
    for number, block in enumerate(blocks):
        exchange.add_layer(block, is_predicting=number != 1)
    return ops, buffers, exchange, blocks


def test_signals_are_answered_for_layers_of_both_kinds() -> None:
    ops, buffers, exchange, blocks = mixed()
    inputs = numbers((3, MAX_TOKENS, HIDDEN), 9)
    layers = [0, 1, 2]
    want = []
    for layer in layers:
        buffers.x[:] = inputs[layer]
        exchange.run(layer, MAX_TOKENS)
        want.append(buffers.y.copy())
    for layer in (0, 2):
        buffers.x[:] = inputs[layer]
        assert same_bits(want[layer], wanted(ops, blocks[layer], buffers, MAX_TOKENS))
    for _ in range(5):
        exchange.start_step(layers, MAX_TOKENS)
        device = Device(buffers, layers, inputs)
        device.run()
        exchange.finish_step()
        for got, wish in zip(device.results, want, strict=True):
            assert same_bits(got, wish)


def test_refuses_layers_that_cannot_predict() -> None:
    ops = NativeOps(1)
    ffn = make_block(ops)
    exchange = ops.exchange(predicting_buffers())
    with pytest.raises(ValueError, match="without a predictor"):
        exchange.add_layer(replace(ffn, predictor=None), is_predicting=True)
    without_input = ops.exchange(replace(predicting_buffers(), predictor_input=None))
    with pytest.raises(ValueError, match="without predictor_input"):
        without_input.add_layer(ffn, is_predicting=True)
    fewer = make_ffn(ops, RELU, (HIDDEN, NEURONS - 1))
    with pytest.raises(ShapeError, match="the predictor scores"):
        exchange.add_layer(replace(fewer, predictor=ffn.predictor), is_predicting=True)
    for shape in ((MAX_TOKENS - 1, HIDDEN), (MAX_TOKENS, HIDDEN - 4)):
        with pytest.raises(ShapeError, match="predictor_input"):
            ops.exchange(replace(predicting_buffers(), predictor_input=numbers(shape, 7)))
    assert exchange.num_layers == without_input.num_layers == 0
    # Cold bits have no room for a layer that asks for them.
    with pytest.raises(ShapeError, match="words"):
        exchange.add_layer(ffn)
