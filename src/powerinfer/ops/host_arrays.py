"""Base class of backends whose activations are numpy arrays; they record and move nothing."""

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

import numpy as np

from powerinfer.ops.operands import NeuronShares
from powerinfer.ops.protocol import LayerProgram
from powerinfer.values import Batch, BoolArray, FloatArray, IntArray

__all__ = ["HostArrays", "quietly"]

# Damaged files hold infinities and NaN. The engine reports what comes of them; numpy's warnings
# would not help. A decorator, because almost every operation can meet them.
quietly = np.errstate(all="ignore")


FFNT = TypeVar("FFNT")


class HostArrays(Generic[FFNT]):
    """The operations of `powerinfer.ops.protocol.Ops` that are about where arrays lie.

    The type parameter is what the backend takes for a feed-forward block.
    """

    __slots__ = ()

    @property
    def native_s(self) -> float | None:
        """Not counted."""
        return None

    @property
    def handoff_name(self) -> str | None:
        """None: there is one device."""
        return None

    @property
    def runs_layers_apart(self) -> bool:
        """Between two layers there are only numpy arrays."""
        return True

    def neuron_shares(self, ffn: FFNT) -> NeuronShares | None:
        """Not counted."""
        return None

    def ffn(
        self,
        x: FloatArray,
        ffn: FFNT,
        predictor_input: FloatArray | None = None,
        is_prompt: BoolArray | None = None,
        router_input: FloatArray | None = None,
    ) -> FloatArray:
        """One feed-forward block; every backend has its own."""
        raise NotImplementedError

    def start_ffn(
        self,
        x: FloatArray,
        ffn: FFNT,
        predictor_input: FloatArray | None = None,
        is_prompt: BoolArray | None = None,
        router_input: FloatArray | None = None,
    ) -> Callable[[], FloatArray]:
        """Nothing begins before the result is asked for."""
        return partial(self.ffn, x, ffn, predictor_input, is_prompt, router_input)

    def take_rows(self, x: FloatArray, rows: IntArray) -> FloatArray:
        """Copy rows."""
        return np.ascontiguousarray(x[rows])

    def to_host(self, x: FloatArray) -> FloatArray:
        """As it is."""
        return x

    def step(self, x: FloatArray, batch: Batch, program: LayerProgram[FloatArray]) -> FloatArray:
        """Run it."""
        return program.end(program.layers(x, batch, 0, program.num_layers))
