"""A placement plan: which parts of each layer lie on the GPU. Plain values.

Paper: "offline neuron placement" (arXiv 2312.12456, section 6). `plan_json` stores plans.
"""

from dataclasses import dataclass

import numpy as np

from powerinfer.errors import PlacementError
from powerinfer.values import IntArray

__all__ = ["LayerPlacement", "PlacementPlan"]


@dataclass(frozen=True, slots=True)
class LayerPlacement:
    """Where the parts of one layer lie; what is not on the GPU is on the CPU.

    Attributes:
        has_attention: norms, attention matrices, keys and values are on the GPU.
        has_predictor: so is what predicts the layer's neurons; False where nothing does.
        hot: i32[k], ascending ids of the neurons whose weights are on the GPU. None of them unless
            `has_attention`, and unless the layer's predictor, if it has one, is there too.
    """

    has_attention: bool
    has_predictor: bool
    hot: IntArray

    def check(self, num_neurons: int) -> None:
        """Check the invariants.

        Raises:
            PlacementError: ids do not ascend within [0, num_neurons), or there are hot neurons in
                a layer whose attention is on the CPU.
        """
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
    """The plan of a whole model.

    Attributes:
        model_identity: `gguf.model_identity` of the model; empty for a model from no file.
        solver: what made it.
        budget_bytes: of GPU memory that it was made for.
        num_neurons: of each layer.
        has_output: the output head and its norm are on the GPU.
        layers: in order.
        predicted_s: seconds one decode step takes by the cost model; None if it was not computed.
    """

    model_identity: str
    solver: str
    budget_bytes: int
    num_neurons: int
    has_output: bool
    layers: tuple[LayerPlacement, ...]
    predicted_s: float | None = None

    def __post_init__(self) -> None:
        """Check every layer.

        Raises:
            PlacementError: an invariant is broken; names the layer.
        """
        for number, layer in enumerate(self.layers):
            try:
                layer.check(self.num_neurons)
            except PlacementError as error:
                raise PlacementError(f"layer {number} of the plan: {error}") from None

    @property
    def has_anything(self) -> bool:
        """Whether anything at all is on the GPU."""
        return self.has_output or any(layer.has_attention for layer in self.layers)

    @property
    def has_everything(self) -> bool:
        """Whether all layers are on the GPU with all their neurons, and the output head."""
        return self.has_output and all(
            layer.has_attention and len(layer.hot) == self.num_neurons for layer in self.layers
        )
