"""Activation frequencies of neurons, on which placements are based. Plain values."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer.errors import PlacementError
from powerinfer.placement.plan import PlacementPlan
from powerinfer.values import FloatArray, IntArray

__all__ = ["ActivationStats", "rounded"]

# Sums of multiples of 2^-24 (the spacing of f32 below 1) are exact in f64, in any order.
_TICKS_PER_TOKEN = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class ActivationStats:
    """Share of profiled tokens for which each neuron is computed.

    Paper: "Offline neuron activation profiling" (arXiv 2312.12456).

    Attributes:
        frequency: f32[num_layers, num_neurons] in [0, 1], probability that a neuron fires for a
            token (or is predicted to, where a predictor decides).
        source: name of a file or text, for users.
        num_tokens: number of tokens profiled; 0 if unknown.

    Raises:
        PlacementError: `frequency` has another shape, type or range.
    """

    frequency: FloatArray
    source: str
    num_tokens: int

    def __post_init__(self) -> None:
        values = self.frequency
        if values.ndim != 2 or values.dtype != np.float32 or not values.size:
            raise PlacementError(
                f"activation frequencies are {values.dtype}{list(values.shape)}, they must be "
                "float32[layers, neurons]"
            )
        # NaN fails too.
        if not (values.min() >= 0.0 and values.max() <= 1.0):
            raise PlacementError(
                f"activation frequencies from {self.source or 'nowhere'} reach from "
                f"{values.min():g} to {values.max():g}, they must be within 0 and 1"
            )

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return int(self.frequency.shape[0])

    @property
    def num_neurons(self) -> int:
        """Number of neurons of each layer."""
        return int(self.frequency.shape[1])

    def rounded(self, layer: int) -> npt.NDArray[np.float64]:
        """Return f64[num_neurons] of one layer in multiples of 2^-24, whose sums are exact.

        The predicted time of a set of neurons then does not depend on the order of summation.
        """
        return rounded(self.frequency[layer].astype(np.float64))

    def order(self, layer: int) -> IntArray:
        """Return i32[num_neurons] of one layer by falling frequency, ties by id."""
        return np.argsort(-self.rounded(layer), kind="stable").astype(np.int32)

    def covered_share(self, plan: PlacementPlan) -> float:
        """Return the share of expected activations on the GPU; 0 if no neuron fires."""
        covered = sum(
            float(self.rounded(number)[layer.hot].sum()) for number, layer in enumerate(plan.layers)
        )
        total = sum(float(self.rounded(number).sum()) for number in range(self.num_layers))
        return covered / total if total else 0.0


def rounded(frequency: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Round to multiples of 2^-24, whose sums are exact in any order."""
    return np.asarray(np.rint(frequency * _TICKS_PER_TOKEN) / _TICKS_PER_TOKEN)
