"""Small blocks whose every neuron is cold, behind a real exchange, and a step over them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from powerinfer.gguf import Tensor
from powerinfer.ops.cpu.exchange import ExchangeBuffers
from powerinfer.ops.cpu.handles import NativeFFN, NativeLinear
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.protocol import FFN, Linear, MatrixUse
from powerinfer.values import Activation, ActivationKind, FloatArray

__all__ = ["HIDDEN", "MAX_TOKENS", "NEURONS", "NUM_LAYERS", "SplitLayers"]

HIDDEN, NEURONS, NUM_LAYERS, MAX_TOKENS = 32, 40, 3, 4


class SplitLayers:
    """Blocks of a few neurons in an exchange of their own.

    Attributes:
        exchange: their `NativeExchange`.
        x, cold, y, flags: its buffers.
    """

    def __init__(self, *, buffers: ExchangeBuffers | None = None, watchdog_s: float = 20.0) -> None:
        shared = _host_buffers() if buffers is None else buffers
        assert shared.flags is not None
        self.x, self.cold, self.y, self.flags = shared.x, shared.cold, shared.y, shared.flags
        ops = NativeOps(2)
        self.exchange = ops.exchange(shared, watchdog_s)
        for seed in range(NUM_LAYERS):
            self.exchange.add_layer(_block(ops, seed))

    def run(
        self,
        x: FloatArray,
        layers: Sequence[int],
        handoff: Any,
        queue: Callable[[Callable[[], None]], None],
    ) -> FloatArray:
        """Add every layer's answer to x in place, by actions that stand for kernels."""
        num_tokens = len(x)

        def give() -> None:
            self.x[:num_tokens] = x
            # The input decides which neurons are wanted, as predictors do.
            self.cold[:num_tokens] = _wanted(x)

        def take() -> None:
            np.add(x, self.y[:num_tokens], out=x)

        for layer in layers:
            queue(give)
            handoff.signal(layer, num_tokens)
            handoff.wait(layer, num_tokens)
            queue(take)
        return x

    def expected(self, x: FloatArray, layers: Sequence[int]) -> FloatArray:
        """The same from beginning to end on the calling thread, on a copy of x."""
        total = np.array(x)
        for layer in layers:
            self.x[: len(x)], self.cold[: len(x)] = total, _wanted(total)
            self.exchange.run(layer, len(x))
            total += self.y[: len(x)]
        return total


def _host_buffers() -> ExchangeBuffers:
    x, y = np.zeros((2, MAX_TOKENS, HIDDEN), np.float32)
    return ExchangeBuffers(
        x=x,
        cold=np.zeros((MAX_TOKENS, 2), np.uint32),
        y=y,
        status=np.zeros(1, np.int32),
        flags=np.zeros((2, NUM_LAYERS), np.uint32),
    )


def _wanted(x: FloatArray) -> npt.NDArray[np.uint32]:
    bits: npt.NDArray[np.uint32] = x[:, :2].view(np.uint32)
    return bits


def _block(ops: NativeOps, seed: int) -> NativeFFN:
    random = np.random.default_rng(seed)

    def linear() -> NativeLinear:
        values = random.standard_normal((NEURONS, HIDDEN)).astype(np.float32) / 8
        data = values.reshape(-1).view(np.uint8)
        tensor = Tensor("block", (NEURONS, HIDDEN), "f32", data, Path())
        return Linear(ops.matrix(tensor, MatrixUse.NEURONS))

    return ops.ffn_weights(
        FFN(
            gate=linear(),
            up=linear(),
            down=linear(),
            activation=Activation(ActivationKind.RELU),
            is_down_transposed=True,
            is_exact_sparse=False,
            native=None,
        )
    )
