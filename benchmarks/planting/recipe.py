"""What goes into planting an FFN and what comes out of it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planting.random_rows import ByteRows, FloatRows
from powerinfer.quant import QuantFormat, get_format

__all__ = ["FFNInput", "Knobs", "PlantedFFN", "format_named"]


def format_named(name: str) -> QuantFormat:
    """A format that can be encoded, or an error that lists those that can."""
    chosen = get_format(name)
    if not chosen.can_encode:
        raise SystemExit(f"error: {name} has no encoder; take f32, f16, q8_0 or q4_0")
    return chosen


@dataclass(frozen=True)
class Knobs:
    """What may be chosen beside the shape.

    Attributes:
        density: mean share of neurons that fire.
        rank: hidden size of the predictor.
        noise: share of a row's variance that the predictor cannot see.
        margin: shift of the scores towards recall, in standard deviations of the pre-activation.
        exponent: of the power law of firing rates.
        weight_format: of all matrices but the head.
        predictor_format: of fc1 and fc2.
        branch_size: size of what attention and FFN add, relative to the residual stream.
    """

    density: float
    rank: int
    noise: float
    margin: float
    exponent: float
    weight_format: QuantFormat
    predictor_format: QuantFormat
    branch_size: float = 0.12


@dataclass(frozen=True)
class FFNInput:
    """Tokens that pass through the layer; the first `calibration` of them fit the offsets.

    Attributes:
        normed: f32[tokens, hidden_size], the FFN's input.
        raw: f32[tokens, hidden_size], the predictor's input.
        norm: f32[hidden_size], weight of the norm between them.
        calibration: how many tokens.
    """

    normed: FloatRows
    raw: FloatRows
    norm: FloatRows
    calibration: int


@dataclass
class PlantedFFN:
    """One planted FFN.

    Attributes:
        tensors: encoded matrices and biases by name within the layer.
        output: f32[tokens, hidden_size], exact, over the tokens of the input.
        fires: bool[held-out tokens, neurons].
        gate_fires: the same of the gate alone.
        predicted: the same as predicted.
        error: relative error of the output on held-out tokens where only predicted neurons count.
    """

    tensors: dict[str, ByteRows]
    output: FloatRows
    fires: npt.NDArray[np.bool_]
    gate_fires: npt.NDArray[np.bool_]
    predicted: npt.NDArray[np.bool_]
    error: float
