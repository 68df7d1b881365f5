"""Runs text through a model without loss and shows which neurons of each layer really fire."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from powerinfer.calibration.ffn_inputs import FFNInputs, InputCollector
from powerinfer.calibration.window_pass import check_finite, run_windows
from powerinfer.models import Model
from powerinfer.models.blocks import FiringObserver, Stage, StepControl
from powerinfer.ops.cpu.fired_bits import count_fired
from powerinfer.values import ByteArray, FloatArray, IntArray

__all__ = ["Bits", "FiringLayer", "SeeLayer", "count_fired", "unpack", "watch_firing"]

Bits: TypeAlias = npt.NDArray[np.uint8]
"""One bit per neuron: that of neuron i is bit ``i % 8``, the lowest first, of byte ``i // 8``."""


@dataclass(frozen=True, slots=True, eq=False)
class FiringLayer:
    """What the FFN of one layer got and which of its neurons fired, for some tokens.

    The arrays belong to the pass and may be written to once the call is over: who keeps them copies
    them.

    Attributes:
        number: of the layer, from 0.
        x: f32[num_tokens, hidden_size], what the FFN gets, normalised.
        raw: f32[num_tokens, hidden_size], what the architecture's own predictors look at.
        fired: u8[num_tokens, ceil(num_neurons / 8)], a bit for each neuron whose value is not zero;
            neurons of experts that a token is not given to do not fire.
    """

    number: int
    x: FloatArray
    raw: FloatArray
    fired: Bits


SeeLayer: TypeAlias = Callable[[FiringLayer], None]


def watch_firing(
    model: Model, windows: IntArray, see: SeeLayer, *, num_layers: int | None = None
) -> None:
    """Run windows of text side by side, as prompts, and show every layer when it is reached.

    Args:
        model: on the CPU, dense or with `exact` sparsity; predictors are not asked.
        windows: i32[num_windows, window], token ids; no window sees another.
        see: called for each layer, in order, with all tokens of all windows one after the other.
        num_layers: end after so many; None for all.

    Raises:
        NumericsError: the input of an FFN holds NaN or infinity.
        UnsupportedError: a GPU computes a part of the model.
    """
    last = model.config.num_layers if num_layers is None else num_layers
    if last:
        run_windows(model, windows, _Watch(see, last))


def unpack(fired: Bits, num_neurons: int) -> npt.NDArray[np.uint8]:
    """The bits as bytes of 0 and 1: u8[num_tokens, num_neurons]."""
    return np.unpackbits(fired, axis=1, count=num_neurons, bitorder="little")


class _Watch(FiringObserver):
    """Puts the stages of a layer and its bits together, and ends the pass after the last layer."""

    def __init__(self, see: SeeLayer, num_layers: int) -> None:
        self._see = see
        self._num_layers = num_layers
        self._collector = InputCollector()
        self._inputs: FFNInputs | None = None

    def __call__(self, stage: Stage, number: int, x: FloatArray) -> StepControl | None:
        inputs = self._collector.see(stage, x)
        if inputs is not None:
            check_finite(inputs.x, number)
            self._inputs = inputs
        is_end = stage is Stage.FFN and number + 1 == self._num_layers
        return StepControl.STOP if is_end else None

    def fired(self, number: int, bits: ByteArray) -> None:
        """Show the layer: its inputs are complete before its FFN runs."""
        if self._inputs is not None:
            inputs, self._inputs = self._inputs, None
            self._see(FiringLayer(number, inputs.x, inputs.raw, bits))
