"""The problem that placement solvers solve: a model, how often its neurons fire, two devices."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer.errors import PlacementError
from powerinfer.placement.activation_stats import ActivationStats, rounded
from powerinfer.placement.cost_model import CostModel
from powerinfer.placement.experts import asked_frequency
from powerinfer.placement.sizes import ModelSizes

__all__ = ["PlacementProblem", "Workload"]


@dataclass(frozen=True, slots=True)
class Workload:
    """What a plan is good for: a mix of tokens that are decoded and tokens of prompts.

    Attributes:
        prompt_tokens: of prompts for each decoded one. One by default: in a conversation the
            question and what is read again of it are about as long as the answer.
        batch_tokens: of a prompt, computed together: weights that the GPU lacks are sent to it
            once for all of them.
    """

    prompt_tokens: float = 1.0
    batch_tokens: int = 512

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            PlacementError: a share is negative or not finite, or a batch is empty.
        """
        if not (self.prompt_tokens >= 0 and math.isfinite(self.prompt_tokens)):
            raise PlacementError(f"{self.prompt_tokens} prompt tokens for each decoded one")
        if self.batch_tokens < 1:
            raise PlacementError(f"batches of {self.batch_tokens} prompt tokens")


@dataclass(frozen=True, slots=True)
class PlacementProblem:
    """Everything that a plan is based on.

    Attributes:
        model_identity: `gguf.model_identity` of the model; empty for a model from no file.
        sizes: of its parts.
        stats: how often its neurons fire.
        cost: how fast both devices are.
        budget_bytes: of GPU memory, for everything: overhead_bytes of the sizes and what is placed.
        workload: what a plan is to be good for.
    """

    model_identity: str
    sizes: ModelSizes
    stats: ActivationStats
    cost: CostModel
    budget_bytes: int
    workload: Workload = Workload()

    def __post_init__(self) -> None:
        """Check that the parts fit each other.

        Raises:
            PlacementError: the statistics are of a model of another shape, or the budget negative.
        """
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
        """f64[num_neurons], how often a token asks each neuron of a layer whether it fires."""
        sizes = self.sizes
        frequency = self.stats.rounded(layer)
        return rounded(asked_frequency(frequency, sizes.num_experts, sizes.num_used))
