"""The CPU half of blocks on two devices: cold bits, and the thread signalled by memory."""

import gc
import time
from dataclasses import replace

import numpy as np
import pytest

from exchange_cases import (
    ACTIVATIONS,
    HIDDEN,
    MAX_TOKENS,
    NEURONS,
    RELU,
    Device,
    expected,
    ids_of,
    make_buffers,
    share,
    wait_for,
)
from native_cases import FORMATS, make_ffn, numbers, same_bits, use_kernels
from patience import PATIENCE_S
from powerinfer.errors import DeviceError, ShapeError
from powerinfer.ops.cpu.exchange import NativeExchange
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.protocol import FFNCounters
from powerinfer.values import Activation, FloatArray


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("is_gated", [True, False])
@pytest.mark.parametrize("is_down_transposed", [True, False])
def test_run_has_the_bits_of_listed_neurons(
    kernels: str, activation: Activation, is_gated: bool, is_down_transposed: bool
) -> None:
    ops = use_kernels(kernels)
    for is_exact_sparse in {False, activation.is_sparse}:
        ffn = make_ffn(
            ops,
            activation,
            (72, 130),
            is_gated=is_gated,
            is_down_transposed=is_down_transposed,
            is_exact_sparse=is_exact_sparse,
            has_bias=True,
        )
        buffers = make_buffers(72, 130)
        exchange = ops.exchange(buffers)
        layer = exchange.add_layer(ffn)
        for num_tokens in range(1, MAX_TOKENS + 1):
            buffers.y[:] = np.nan
            exchange.run(layer, num_tokens)
            assert same_bits(buffers.y[:num_tokens], expected(ops, ffn, buffers, num_tokens))
            assert np.isnan(buffers.y[num_tokens:]).all()


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("is_down_transposed", [True, False])
@pytest.mark.parametrize("repack", [True, False])
def test_every_format(format_name: str, is_down_transposed: bool, repack: bool) -> None:
    ops = NativeOps(2, repack=repack)
    ffn = make_ffn(
        ops,
        RELU,
        (HIDDEN, NEURONS),
        format_name=format_name,
        is_down_transposed=is_down_transposed,
    )
    buffers = make_buffers()
    exchange = ops.exchange(buffers)
    layer = exchange.add_layer(ffn)
    for num_tokens in (1, MAX_TOKENS):
        exchange.run(layer, num_tokens)
        assert same_bits(buffers.y[:num_tokens], expected(ops, ffn, buffers, num_tokens))


@pytest.mark.parametrize("is_down_transposed", [True, False])
@pytest.mark.parametrize("fill", [0, 0xFFFFFFFF])
def test_none_and_all(fill: int, is_down_transposed: bool) -> None:
    ops = NativeOps(2)
    sizes = (HIDDEN, NEURONS - 3)  # with all, bits beyond the last neuron are set too
    ffn = make_ffn(ops, RELU, sizes, is_down_transposed=is_down_transposed, has_bias=True)
    buffers = make_buffers()
    exchange = ops.exchange(buffers)
    layer = exchange.add_layer(ffn)
    buffers.cold[1:] = fill
    exchange.run(layer, 3)  # one token of the other kind among them
    assert same_bits(buffers.y[:3], expected(ops, ffn, buffers, 3))
    buffers.cold[:] = fill
    exchange.run(layer, MAX_TOKENS)
    want = expected(ops, ffn, buffers, MAX_TOKENS)
    np.testing.assert_array_equal(buffers.y, want)
    assert fill or not buffers.y.any()


def test_counts_what_it_did() -> None:
    shared = share()
    before = replace(shared.ops.counters)
    want = FFNCounters()
    shared.exchange.run(0, 3)
    assert shared.ops.counters == before  # the exchange keeps its own counts
    shared.exchange.collect(want)
    assert want.total == 3 * NEURONS
    assert want.predicted == len(ids_of(shared.buffers.cold[:3], NEURONS).ids)
    shared.ops.counters = FFNCounters()
    shared.expected(0, 3)
    assert want == shared.ops.counters
    shared.exchange.collect(want)
    assert want == shared.ops.counters  # nothing ran since


def test_threads_held_awake_change_nothing() -> None:
    shared = share()
    want = shared.expected(0, 2)
    exchange = shared.exchange
    for change in (exchange.hold_awake, exchange.hold_awake, exchange.let_sleep):
        change()
        for gap_s in (0.0, 0.001, 0.004):
            time.sleep(gap_s)
            shared.exchange.run(0, 2)
            assert same_bits(shared.buffers.y[:2], want)


def test_a_hundred_signalled_steps_in_a_row() -> None:
    shared = share(3)
    layers = [2, 0, 1]
    inputs = numbers((len(layers), MAX_TOKENS, HIDDEN), 9)
    want = []
    for layer, x in zip(layers, inputs, strict=True):
        shared.buffers.x[:] = x
        want.append(shared.expected(layer, MAX_TOKENS))
    for _ in range(100):
        shared.exchange.start_step(layers, MAX_TOKENS)
        device = Device(shared.buffers, layers, inputs)
        device.start()
        shared.exchange.finish_step()
        device.join(PATIENCE_S)
        for got, wanted in zip(device.results, want, strict=True):
            assert same_bits(got, wanted)
    assert shared.buffers.flags is not None
    assert not shared.buffers.flags.any() and not shared.buffers.status.any()
    counters = FFNCounters()
    shared.exchange.collect(counters)
    assert counters.total == 100 * len(layers) * MAX_TOKENS * NEURONS


def test_signals_are_answered_beside_busy_python() -> None:
    shared = share()
    inputs = numbers((50, MAX_TOKENS, HIDDEN), 9)
    want = []
    for x in inputs:
        shared.buffers.x[:] = x
        want.append(shared.expected(0, 1))
    shared.exchange.start_step([0] * len(inputs), 1)
    device = Device(shared.buffers, [0] * len(inputs), inputs)
    device.start()
    x = numbers((1, HIDDEN), 8)
    while device.is_alive():  # Python code, and operations of the same team
        shared.ops.ffn(x, shared.ffns[0])
    shared.exchange.finish_step()
    for got, wanted in zip(device.results, want, strict=True):
        assert same_bits(got[:1], wanted)


def test_steps_may_have_any_layers() -> None:
    shared = share(3)
    shared.exchange.finish_step()
    for layers in ([], [1], [2, 1]):
        shared.exchange.start_step(layers, MAX_TOKENS)
        Device(shared.buffers, layers, numbers((len(layers), MAX_TOKENS, HIDDEN), 1)).run()
        shared.exchange.finish_step()
        shared.exchange.finish_step()


def test_a_step_without_signals_is_given_up() -> None:
    shared = share(3, watchdog_s=0.05)
    flags, status = shared.buffers.flags, shared.buffers.status
    assert flags is not None
    layers = [0, 1, 2]
    for _ in range(2):
        shared.exchange.start_step(layers, 1)
        flags[0, 0] = 1
        wait_for(flags[1], *layers)  # whoever waits for them goes on
        assert status[0] == 2
        with pytest.raises(DeviceError, match=r"no signal for layer 1 within 0\.05 s"):
            shared.exchange.finish_step()
        assert status[0] == 0
        shared.exchange.raise_failure()
        flags[0, 2] = 1  # a signal that comes too late
    shared.exchange.start_step(layers, MAX_TOKENS)
    inputs = numbers((len(layers), MAX_TOKENS, HIDDEN), 9)
    device = Device(shared.buffers, layers, inputs)
    device.run()
    shared.exchange.finish_step()
    shared.buffers.x[:] = inputs[2]
    assert same_bits(device.results[2], shared.expected(2, MAX_TOKENS))


def test_dropping_an_exchange_ends_its_step() -> None:
    shared = share(2)
    flags = shared.buffers.flags
    assert flags is not None
    shared.exchange.start_step([0, 1], 1)
    del shared.exchange
    gc.collect()
    assert flags[1].tolist() == [1, 1]


def test_keeps_alive_what_it_uses() -> None:
    def make() -> tuple[NativeExchange, FloatArray]:
        shared = share()
        want = shared.expected(0, MAX_TOKENS)
        return shared.exchange, want

    exchange, want = make()
    gc.collect()
    garbage = [numbers((NEURONS, HIDDEN), seed) for seed in range(4)]  # reuses freed memory
    exchange.run(0, MAX_TOKENS)
    assert same_bits(exchange.buffers.y, want)
    assert len(garbage) == 4


def test_refuses_calls_that_do_not_fit() -> None:
    shared = share(2)
    exchange = shared.exchange
    for layer in (-1, 2):
        with pytest.raises(IndexError, match="not in"):
            exchange.run(layer, 1)
        with pytest.raises(IndexError, match="not in"):
            exchange.start_step([0, layer], 1)
    for num_tokens in (0, MAX_TOKENS + 1):
        with pytest.raises(ValueError, match="1 to 8 tokens"):
            exchange.run(0, num_tokens)
    exchange.start_step([0], 1)
    with pytest.raises(RuntimeError, match="runs already"):
        exchange.start_step([0], 1)


def test_refuses_buffers_that_do_not_fit() -> None:
    ops = NativeOps(1)
    good = make_buffers(num_layers=1)
    for bad in (
        replace(good, y=good.y[:, :-4].copy()),
        replace(good, y=good.y[:-1]),
        replace(good, cold=good.cold[:-1]),
        replace(good, status=np.zeros(2, np.int32)),
        replace(good, flags=np.zeros((1, 3), np.uint32)),
        replace(good, x=good.x[:0], y=good.y[:0], cold=good.cold[:0]),
    ):
        with pytest.raises(ShapeError):
            ops.exchange(bad)
    with pytest.raises(TypeError):
        ops.exchange(replace(good, cold=good.cold.view(np.int32)))
    for watchdog_s in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="watchdog_s"):
            ops.exchange(good, watchdog_s)


def test_refuses_layers_that_do_not_fit() -> None:
    shared = share()
    for sizes, message in (
        ((HIDDEN, NEURONS + 1), "need 17 words"),
        ((HIDDEN + 4, NEURONS), "hidden size"),
    ):
        with pytest.raises(ShapeError, match=message):
            shared.exchange.add_layer(make_ffn(shared.ops, RELU, sizes))
    without_flags = shared.ops.exchange(make_buffers())
    without_flags.add_layer(shared.ffns[0])
    with pytest.raises(ValueError, match="without flags"):
        without_flags.start_step([0], 1)
    without_flags.run(0, 1)
    shared.exchange.add_layer(shared.ffns[0])  # more layers than flags
    with pytest.raises(IndexError, match="has no flags"):
        shared.exchange.start_step([1], 1)
