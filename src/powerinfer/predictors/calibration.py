"""Results of a calibration, as plain values; `calibration_json` stores them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from powerinfer.predictors.build import LayerChoice
from powerinfer.values import Activation, FloatArray

__all__ = [
    "DEFAULT_DIAL",
    "Calibration",
    "Curve",
    "CurvePoint",
    "Dial",
    "LayerCalibration",
    "default_dial",
    "hot_share",
    "six_digits",
]


def six_digits(value: float) -> float:
    """Round to six digits, which stay the same when stored, read and compared."""
    return float(f"{value:.6g}")


@dataclass(frozen=True, slots=True)
class Dial:
    """Limit on the loss of each layer; exactly one is given.

    Attributes:
        max_ffn_error: largest relative error of the FFN output, see `CurvePoint`.
        recall: smallest share of the active neurons that must be predicted.
        zeros: largest share of the neurons that a threshold on the activation may make zero.
    """

    max_ffn_error: float | None = None
    recall: float | None = None
    zeros: float | None = None

    def __str__(self) -> str:
        if self.zeros is not None:
            return f"zeros {self.zeros:g}"
        if self.recall is not None:
            return f"recall {self.recall:g}"
        return f"FFN error {self.max_ffn_error:g}"


DEFAULT_DIAL = Dial(max_ffn_error=0.01)


def default_dial(activation: Activation) -> Dial:
    """Return the limit where nobody names one."""
    return DEFAULT_DIAL if activation.is_sparse else Dial(zeros=0.5)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Quality of a predictor kind at one setting, measured on text it was not fitted to.

    Shares in a mixture of experts refer to the neurons of the experts selected for a token.

    Attributes:
        thresholds: one per part of the kind.
        density: share of the neurons that are predicted.
        recall: share of the active neurons that are predicted, pooled over tokens.
        precision: share of the predicted neurons that are active, pooled over tokens.
        ffn_error: sqrt(sum |y - y_sparse|^2 / sum |y|^2) over tokens, y being the FFN's output.
        time: predicted time of the FFN relative to that of `exact`.
        ffn_error_high: bound that `ffn_error` almost never exceeds on other text of the same kind.
    """

    thresholds: tuple[float, ...]
    density: float
    recall: float
    precision: float
    ffn_error: float
    time: float
    ffn_error_high: float = 0.0


Curve = tuple[CurvePoint, ...]


@dataclass(frozen=True, slots=True)
class LayerCalibration:
    """Results of one layer.

    Attributes:
        num_active: i64[num_neurons], number of tokens in which each neuron was active, among all
            tokens; experts are concatenated.
        mean: f32[hidden_size], mean of the FFN's input.
        variance: f32[hidden_size], variance of the FFN's input.
    """

    num_active: npt.NDArray[np.int64]
    mean: FloatArray
    variance: FloatArray
    curves: Mapping[str, Curve]
    choice: LayerChoice

    @property
    def chosen_point(self) -> CurvePoint | None:
        """Measured point of the choice; None for `exact`."""
        for point in self.curves.get(self.choice.kind, ()):
            if point.thresholds == self.choice.thresholds:
                return point
        return None

    def hot_share(self, share_of_activations: float = 0.8) -> float:
        """Smallest share of the neurons of all experts that covers a share of the activations."""
        return hot_share(self.num_active, share_of_activations)


def hot_share(counts: npt.NDArray[np.int64], share_of_activations: float = 0.8) -> float:
    """Smallest share of the neurons that covers a share of the activations.

    `counts` i64[num_neurons] has the number of tokens for which each neuron fired.
    """
    falling = np.sort(counts)[::-1]
    if not falling.sum():
        return 0.0
    reached = np.cumsum(falling) >= share_of_activations * falling.sum()
    return float((np.argmax(reached) + 1) / len(falling))


@dataclass(frozen=True, slots=True)
class Calibration:
    """Results of a whole model.

    Attributes:
        model_identity: `gguf.model_identity` of the model.
        dial: limit that the choices keep to.
        num_experts: experts per FFN; 1 without a router.
        num_experts_used: experts selected for a token.
    """

    model_identity: str
    activation: str
    text_name: str
    num_tokens: int
    dial: Dial
    layers: tuple[LayerCalibration, ...]
    num_experts: int = 1
    num_experts_used: int = 1

    @property
    def choices(self) -> tuple[LayerChoice, ...]:
        """Choice of each layer."""
        return tuple(layer.choice for layer in self.layers)

    def active_share(self, layer: int) -> float:
        """Share of a layer's neurons that is active, over all tokens.

        In a mixture of experts, the share within the experts selected for a token.
        """
        of_all = float(self.layers[layer].num_active.mean()) / self.num_tokens
        return of_all * self.num_experts / self.num_experts_used

    def chosen(self, dial: Dial, choices: Sequence[LayerChoice]) -> "Calibration":
        """Return the same measurements with other choices."""
        layers = zip(self.layers, choices, strict=True)
        chosen = tuple(replace(layer, choice=choice) for layer, choice in layers)
        return replace(self, dial=dial, layers=chosen)
