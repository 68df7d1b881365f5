"""Runs text through a model without loss and shows which neurons of each layer really fire."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from powerinfer.calibration.ffn_inputs import FFNInputs
from powerinfer.calibration.window_pass import WindowPass, run_windows
from powerinfer.models import Model
from powerinfer.models.blocks import FiringObserver
from powerinfer.ops.cpu.fired_bits import count_fired
from powerinfer.predictors import PredictorInput
from powerinfer.values import ByteArray, FloatArray, IntArray

__all__ = ["Bits", "FiringLayer", "SeeLayer", "count_fired", "unpack", "watch_firing"]

Bits: TypeAlias = npt.NDArray[np.uint8]
"""One bit per neuron: that of neuron i is bit ``i % 8``, the lowest first, of byte ``i // 8``."""


@dataclass(frozen=True, slots=True, eq=False)
class FiringLayer:
    """The FFN of one layer: its inputs and which of its neurons fired, for some tokens.

    The arrays belong to the pass and may be overwritten after the call: copy them to keep them.

    Attributes:
        x: f32[num_tokens, hidden_size], input of the FFN, normalised.
        raw: f32[num_tokens, hidden_size], input of the architecture's own predictors, if they do
            not see that of the FFN.
        fired: u8[num_tokens, ceil(num_neurons / 8)], a bit for each neuron whose value is not zero;
            neurons of experts that were not chosen for a token do not fire.
        router: f32[num_tokens, hidden_size], input of the router, if that is not `x`.
    """

    number: int
    x: FloatArray
    raw: FloatArray
    fired: Bits
    router: FloatArray | None = None

    def seen(self, by: PredictorInput) -> FloatArray:
        """Input of predictors that see what `by` says."""
        return self.x if by is PredictorInput.FFN_INPUT else self.raw


SeeLayer: TypeAlias = Callable[[FiringLayer], None]


def watch_firing(
    model: Model, windows: IntArray, see: SeeLayer, *, num_layers: int | None = None
) -> None:
    """Run windows i32[num_windows, window] side by side, as prompts, and show every layer.

    The model is on the CPU, dense or with `exact` sparsity; predictors are not asked. No window
    sees another. `see` gets each layer in order, with all tokens of all windows one after the
    other; `num_layers` ends the pass early.
    """
    last = model.config.num_layers if num_layers is None else num_layers
    if last:
        run_windows(model, windows, _Watch(see, last))


def unpack(fired: Bits, num_neurons: int) -> npt.NDArray[np.uint8]:
    """Unpack bits to bytes of 0 and 1: u8[num_tokens, num_neurons]."""
    return np.unpackbits(fired, axis=1, count=num_neurons, bitorder="little")


class _Watch(WindowPass, FiringObserver):
    """Puts the inputs of a layer and its bits together."""

    def __init__(self, see: SeeLayer, num_layers: int) -> None:
        super().__init__(self._keep, num_layers)
        self._show = see
        self._inputs: FFNInputs | None = None

    def _keep(self, _number: int, inputs: FFNInputs) -> None:
        self._inputs = inputs

    def fired(self, number: int, bits: ByteArray) -> None:
        """Show the layer: its inputs are complete before its FFN runs."""
        if self._inputs is not None:
            inputs, self._inputs = self._inputs, None
            self._show(FiringLayer(number, inputs.x, inputs.raw, bits, inputs.router))
