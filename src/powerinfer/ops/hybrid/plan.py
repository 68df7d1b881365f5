"""Protocols of a plan, as far as the hybrid backend uses it."""

from collections.abc import Sequence
from typing import Protocol

from powerinfer.values import IntArray

__all__ = ["LayerPlan", "Plan"]


class LayerPlan(Protocol):
    """Plan of one layer, such as `powerinfer.placement.plan.LayerPlacement`."""

    @property
    def has_attention(self) -> bool:
        """Norms, attention matrices, keys and values are on the GPU."""
        ...

    @property
    def has_predictor(self) -> bool:
        """The predictor of its neurons is on the GPU."""
        ...

    @property
    def hot(self) -> IntArray:
        """Ascending ids of the neurons on the GPU, i32[k]."""
        ...


class Plan(Protocol):
    """Plan of a model, such as `powerinfer.placement.plan.PlacementPlan`."""

    @property
    def budget_bytes(self) -> int:
        """GPU memory that it was made for."""
        ...

    @property
    def has_output(self) -> bool:
        """The output head and its norm are on the GPU."""
        ...

    @property
    def num_neurons(self) -> int:
        """Neurons of a layer."""
        ...

    @property
    def layers(self) -> Sequence[LayerPlan]:
        """Plans of the layers, in order."""
        ...
