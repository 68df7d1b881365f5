"""Input of placement solvers: a model, its activation frequencies and two devices."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer.errors import PlacementError
from powerinfer.placement.activation_stats import ActivationStats, rounded
from powerinfer.placement.cost_model import CostModel
from powerinfer.placement.sizes import ModelSizes

__all__ = ["PlacementProblem", "Workload", "asked_frequency"]


@dataclass(frozen=True, slots=True)
class Workload:
    """Mix of decoded tokens and prompt tokens to optimise for.

    Attributes:
        prompt_tokens: prompt tokens per decoded token. One by default: in a conversation the
            question and the parts of it read again are about as long as the answer.
        batch_tokens: prompt tokens computed together: weights that the GPU lacks are sent to it
            once per batch.

    Raises:
        PlacementError: a share is negative or not finite, or a batch is empty.
    """

    prompt_tokens: float = 1.0
    batch_tokens: int = 512

    def __post_init__(self) -> None:
        if not (self.prompt_tokens >= 0 and math.isfinite(self.prompt_tokens)):
            raise PlacementError(f"{self.prompt_tokens} prompt tokens for each decoded one")
        if self.batch_tokens < 1:
            raise PlacementError(f"batches of {self.batch_tokens} prompt tokens")


@dataclass(frozen=True, slots=True)
class PlacementProblem:
    """All inputs of a plan.

    Attributes:
        model_identity: `gguf.model_identity` of the model; empty for a model without a file.
        budget_bytes: GPU memory for overhead_bytes of the sizes and all placed parts.

    Raises:
        PlacementError: the statistics are of a model of another shape, or the budget is negative.
    """

    model_identity: str
    sizes: ModelSizes
    stats: ActivationStats
    cost: CostModel
    budget_bytes: int
    workload: Workload = Workload()

    def __post_init__(self) -> None:
        sizes, stats = self.sizes, self.stats
        if (stats.num_layers, stats.num_neurons) != (len(sizes.layers), sizes.num_neurons):
            raise PlacementError(
                f"activation statistics from {stats.source or 'nowhere'} are of {stats.num_layers} "
                f"layers of {stats.num_neurons} neurons, the model has {len(sizes.layers)} of "
                f"{sizes.num_neurons}; give those of this model"
            )
        if self.budget_bytes < 0:
            raise PlacementError(f"a memory budget of {self.budget_bytes} bytes is negative")

    def asked(self, layer: int) -> npt.NDArray[np.float64]:
        """Return how often a token checks each neuron of a layer, f64[num_neurons]."""
        sizes = self.sizes
        frequency = self.stats.rounded(layer)
        return rounded(asked_frequency(frequency, sizes.num_experts, sizes.num_used))


def asked_frequency(
    frequency: npt.NDArray[np.float64], num_experts: int, num_used: int
) -> npt.NDArray[np.float64]:
    """Estimate how often each neuron's expert is selected: f64[num_neurons]; 1 without experts.

    Counts of firing neurons do not contain that. Experts are assumed to be selected in proportion
    to the firing of their neurons, and at least as often as any of these fires.

    Args:
        frequency: f64[num_neurons], firing frequency.
        num_experts: experts of the layer; 1 without a router.
        num_used: experts selected for a token.
    """
    if num_experts == 1:
        return np.ones_like(frequency)
    by_expert = frequency.reshape(num_experts, -1)
    sums = by_expert.sum(axis=1)
    total = sums.sum()
    shares = sums / total if total else np.full(num_experts, 1 / num_experts)
    chosen = np.clip(num_used * shares, by_expert.max(axis=1), 1.0)
    return np.repeat(chosen, by_expert.shape[1])
