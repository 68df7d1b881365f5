"""How large the predictors of a model's layers may be."""

from collections.abc import Sequence

from powerinfer.train.predictors.goal import RANK_STEP

__all__ = ["rank_limits", "rank_parameters"]


def rank_parameters(hidden_size: int, num_neurons: int) -> int:
    """Parameters of a predictor per unit of its rank."""
    return hidden_size + num_neurons


def rank_limits(max_parameters: int, rank_cost: int, densities: Sequence[float]) -> list[int]:
    """Largest rank of each layer: denser layers may have more, all together stay below the limit.

    Of a layer that ended below its limit, the rest can be given to those after it: ask again with
    what is left.

    Args:
        max_parameters: of the predictors of all these layers together.
        rank_cost: parameters of a layer's predictor per unit of its rank.
        densities: of each layer, the share of neurons that fire.

    Returns:
        Multiples of `RANK_STEP`, at least one step: a layer without any is not possible.
    """
    steps = max_parameters // (rank_cost * RANK_STEP)
    wishes = [max(density, 1e-6) ** 0.25 for density in densities]
    limits = [1] * len(densities)
    for _ in range(steps - len(densities)):
        neediest = max(range(len(wishes)), key=lambda layer: wishes[layer] / limits[layer])
        limits[neediest] += 1
    return [RANK_STEP * limit for limit in limits]
