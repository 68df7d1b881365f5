"""What the hybrid backend needs to know of a plan, so that it need not know who made it."""

from collections.abc import Sequence
from typing import Protocol

from powerinfer.values import IntArray

__all__ = ["LayerPlan", "Plan"]


class LayerPlan(Protocol):
    """Of one layer: `powerinfer.placement.plan.LayerPlacement`."""

    @property
    def has_attention(self) -> bool:
        """Norms, attention matrices, keys and values are on the GPU."""
        ...

    @property
    def has_predictor(self) -> bool:
        """So is what predicts its neurons."""
        ...

    @property
    def hot(self) -> IntArray:
        """i32[k], ascending ids of the neurons on the GPU."""
        ...


class Plan(Protocol):
    """Of a model: `powerinfer.placement.plan.PlacementPlan`."""

    @property
    def budget_bytes(self) -> int:
        """Of GPU memory that it was made for."""
        ...

    @property
    def has_output(self) -> bool:
        """The output head and its norm are on the GPU."""
        ...

    @property
    def num_neurons(self) -> int:
        """Of each layer."""
        ...

    @property
    def layers(self) -> Sequence[LayerPlan]:
        """In order."""
        ...
