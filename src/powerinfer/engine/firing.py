"""Runs text through a model without loss and shows which neurons of each layer really fire."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from powerinfer.engine.calibration.ground_truth import neuron_values, token_chunks
from powerinfer.engine.calibration.routing import Routing
from powerinfer.engine.calibration.window_pass import measure_layers
from powerinfer.engine.ffn_inputs import FFNInputs
from powerinfer.models import Model
from powerinfer.values import FloatArray, IntArray

__all__ = ["Bits", "FiringLayer", "SeeLayer", "unpack", "watch_firing"]

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
        model: on the CPU, with `exact` sparsity.
        windows: i32[num_windows, window], token ids; no window sees another.
        see: called for each layer, in order, with all tokens of all windows one after the other.
        num_layers: end after so many; None for all.

    Raises:
        NumericsError: the input of an FFN holds NaN or infinity.
    """
    last = model.config.num_layers if num_layers is None else num_layers

    def measure(number: int, inputs: FFNInputs) -> None:
        if number < last:
            see(FiringLayer(number, inputs.x, inputs.raw, _fired(model, number, inputs)))

    measure_layers(model, windows, measure)


def unpack(fired: Bits, num_neurons: int) -> npt.NDArray[np.uint8]:
    """The bits as bytes of 0 and 1: u8[num_tokens, num_neurons]."""
    return np.unpackbits(fired, axis=1, count=num_neurons, bitorder="little")


def _fired(model: Model, number: int, inputs: FFNInputs) -> Bits:
    ops, ffn = model.ops, model.weights.layers[number].ffn
    routing = Routing.of(ops, ffn, inputs.x, inputs.router, np.ones(len(inputs.x), bool))
    parts = []
    for chunk in token_chunks(len(inputs.x)):
        rows = routing.rows(chunk)
        _, values = neuron_values(ops, ffn, inputs.x[chunk], rows)
        fires = rows.ids(values != 0).mask(routing.num_neurons)
        parts.append(np.packbits(fires, axis=1, bitorder="little"))
    return np.concatenate(parts)
