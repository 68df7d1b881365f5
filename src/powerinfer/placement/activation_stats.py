"""How often each neuron fires, which placements are based on. Plain values."""

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
    """The share of profiled tokens for which each neuron is computed.

    Paper: "Offline neuron activation profiling" (arXiv 2312.12456).

    Attributes:
        frequency: f32[num_layers, num_neurons] in [0, 1], probability that a neuron is among those
            that fire for a token (or are predicted to, where a predictor decides).
        source: where they come from, for users: the name of a file or of a text.
        num_tokens: that were profiled; 0 where that is unknown.
    """

    frequency: FloatArray
    source: str
    num_tokens: int

    def __post_init__(self) -> None:
        """Check the array.

        Raises:
            PlacementError: it is not f32[layers, neurons] in [0, 1].
        """
        values = self.frequency
        if values.ndim != 2 or values.dtype != np.float32 or not values.size:
            raise PlacementError(
                f"activation frequencies are {values.dtype}{list(values.shape)}, they must be "
                "float32[layers, neurons]"
            )
        # Written so that NaN fails too.
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
        """f64[num_neurons] of one layer in multiples of 2^-24, whose sums are exact in any order.

        So one set of neurons has one predicted time, however it was added up.
        """
        return rounded(self.frequency[layer].astype(np.float64))

    def order(self, layer: int) -> IntArray:
        """i32[num_neurons], neurons of one layer, the most frequent first, ties by id."""
        return np.argsort(-self.rounded(layer), kind="stable").astype(np.int32)

    def covered_share(self, plan: PlacementPlan) -> float:
        """Share of the expected activations whose neurons are on the GPU; 0 where none fire."""
        covered = sum(
            float(self.rounded(number)[layer.hot].sum()) for number, layer in enumerate(plan.layers)
        )
        total = sum(float(self.rounded(number).sum()) for number in range(self.num_layers))
        return covered / total if total else 0.0


def rounded(frequency: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The nearest multiples of 2^-24, whose sums are exact in any order."""
    return np.asarray(np.rint(frequency * _TICKS_PER_TOKEN) / _TICKS_PER_TOKEN)
