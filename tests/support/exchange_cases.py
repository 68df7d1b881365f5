"""An exchange with layers, and what plays the other device, for the tests of both."""

import threading
import time
from dataclasses import dataclass, replace

import numpy as np

from native_cases import make_ffn, numbers
from patience import PATIENCE_S
from powerinfer.ops.cpu.exchange import ExchangeBuffers, NativeExchange, WordArray
from powerinfer.ops.cpu.handles import NativeFFN
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.protocol import ActiveIds
from powerinfer.values import Activation, ActivationKind, FloatArray

__all__ = [
    "ACTIVATIONS",
    "HIDDEN",
    "MAX_TOKENS",
    "NEURONS",
    "RELU",
    "Device",
    "Shared",
    "expected",
    "ids_of",
    "make_buffers",
    "share",
    "wait_for",
]

MAX_TOKENS = 8
HIDDEN, NEURONS = 256, 512
RELU = Activation(ActivationKind.RELU)
ACTIVATIONS = [
    Activation(kind, 0.3 if kind is ActivationKind.FATRELU else 0.0) for kind in ActivationKind
]


def make_buffers(
    hidden: int = HIDDEN, neurons: int = NEURONS, num_layers: int | None = None
) -> ExchangeBuffers:
    """Buffers of random input and cold bits; y is NaN."""
    words = -(-neurons // 32)
    random = np.random.default_rng(5)
    return ExchangeBuffers(
        x=numbers((MAX_TOKENS, hidden), 6),
        cold=random.integers(0, 1 << 32, (MAX_TOKENS, words), dtype=np.uint32),
        y=np.full((MAX_TOKENS, hidden), np.nan, np.float32),
        status=np.zeros(1, np.int32),
        flags=None if num_layers is None else np.zeros((2, num_layers), np.uint32),
    )


def ids_of(cold: WordArray, num_neurons: int) -> ActiveIds:
    """The lists that rows of bits name."""
    bits = np.unpackbits(cold.view(np.uint8), axis=1, bitorder="little")[:, :num_neurons]
    offsets = np.concatenate([[0], np.cumsum(bits.sum(1, dtype=np.int64))])
    return ActiveIds(offsets, np.nonzero(bits)[1].astype(np.int32))


def expected(
    ops: NativeOps, ffn: NativeFFN, buffers: ExchangeBuffers, num_tokens: int
) -> FloatArray:
    """What the same neurons give by `ffn_active`, without the bias of down."""
    unbiased = ops.ffn_weights(replace(ffn, down=replace(ffn.down, bias=None)))
    neurons, _ = ops.matrix_shape(ffn.up.matrix)
    active = ids_of(buffers.cold[:num_tokens], neurons)
    return ops.ffn_active(buffers.x[:num_tokens], unbiased, active)


@dataclass
class Shared:
    """A backend, layers of it, and their exchange."""

    ops: NativeOps
    ffns: list[NativeFFN]
    buffers: ExchangeBuffers
    exchange: NativeExchange

    def expected(self, layer: int, num_tokens: int) -> FloatArray:
        """The first rows of y."""
        return expected(self.ops, self.ffns[layer], self.buffers, num_tokens)


def share(num_layers: int = 1, *, watchdog_s: float = 60.0) -> Shared:
    """Layers with biases, flags included."""
    ops = NativeOps(2)
    buffers = make_buffers(num_layers=num_layers)
    exchange = ops.exchange(buffers, watchdog_s)
    ffns = []
    for layer in range(num_layers):
        activation = ACTIVATIONS[layer % len(ACTIVATIONS)]
        ffns.append(make_ffn(ops, activation, (HIDDEN, NEURONS), has_bias=True))
        assert exchange.add_layer(ffns[-1]) == layer
    assert exchange.num_layers == num_layers and exchange.max_tokens == MAX_TOKENS
    return Shared(ops, ffns, buffers, exchange)


class Device(threading.Thread):
    """Does what a stream does in memory-operation mode; join it for the results of the layers."""

    def __init__(self, buffers: ExchangeBuffers, layers: list[int], inputs: FloatArray) -> None:
        """inputs: f32[len(layers), MAX_TOKENS, HIDDEN]."""
        super().__init__()
        self.buffers, self.layers, self.inputs = buffers, layers, inputs
        self.results = np.empty_like(inputs)

    def run(self) -> None:
        """Signal and wait, layer after layer."""
        flags = self.buffers.flags
        assert flags is not None
        for i, layer in enumerate(self.layers):
            self.buffers.x[:] = self.inputs[i]
            flags[0, layer] = 1
            wait_for(flags[1], layer)
            flags[1, layer] = 0
            self.results[i] = self.buffers.y


def wait_for(flags: WordArray, *layers: int) -> None:
    """Until the flags of the layers are set; fails rather than hangs."""
    end = time.monotonic() + PATIENCE_S
    while not flags[list(layers)].all():
        assert time.monotonic() < end, "a flag was never set"
        time.sleep(0)
