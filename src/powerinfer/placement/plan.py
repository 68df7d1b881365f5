"""A placement plan: the parts of each layer on the GPU. Plain values.

Paper: "offline neuron placement" (arXiv 2312.12456, section 6). `plan_json` stores plans.
"""

from dataclasses import dataclass

import numpy as np

from powerinfer.errors import PlacementError
from powerinfer.values import IntArray

__all__ = ["LayerPlacement", "PlacementPlan"]


@dataclass(frozen=True, slots=True)
class LayerPlacement:
    """Placement of the parts of one layer; parts that are not on the GPU are on the CPU.

    Attributes:
        has_attention: norms, attention matrices, keys and values are on the GPU.
        has_predictor: the layer's predictor is on the GPU; False if it has none.
        hot: i32[k], ascending ids of the neurons on the GPU. Requires `has_attention`, and the
            layer's predictor, if it has one, on the GPU.
    """

    has_attention: bool
    has_predictor: bool
    hot: IntArray

    def check(self, num_neurons: int) -> None:
        """Raise PlacementError if an invariant is broken."""
        hot = self.hot
        if len(hot) and (hot[0] < 0 or hot[-1] >= num_neurons or (np.diff(hot) <= 0).any()):
            raise PlacementError(
                f"ids of hot neurons must ascend strictly within [0, {num_neurons})"
            )
        if len(hot) and not self.has_attention:
            raise PlacementError("a layer whose attention is on the CPU has hot neurons")
        if self.has_predictor and not self.has_attention:
            raise PlacementError("a layer whose attention is on the CPU has its predictor apart")


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """Plan of a whole model.

    Attributes:
        model_identity: `gguf.model_identity` of the model; empty for a model without a file.
        solver: name of its solver.
        budget_bytes: GPU memory that it was made for.
        num_neurons: neurons per layer.
        has_output: the output head and its norm are on the GPU.
        predicted_s: seconds per decode step by the cost model, or None.

    Raises:
        PlacementError: an invariant of a layer is broken; names the layer.
    """

    model_identity: str
    solver: str
    budget_bytes: int
    num_neurons: int
    has_output: bool
    layers: tuple[LayerPlacement, ...]
    predicted_s: float | None = None

    def __post_init__(self) -> None:
        for number, layer in enumerate(self.layers):
            try:
                layer.check(self.num_neurons)
            except PlacementError as error:
                raise PlacementError(f"layer {number} of the plan: {error}") from None

    @property
    def has_anything(self) -> bool:
        """True if any part is on the GPU."""
        return self.has_output or any(layer.has_attention for layer in self.layers)

    @property
    def has_everything(self) -> bool:
        """True if all layers are on the GPU with all their neurons, and the output head."""
        return self.has_output and all(
            layer.has_attention and len(layer.hot) == self.num_neurons for layer in self.layers
        )
