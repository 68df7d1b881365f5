"""Ranks of predictors: which to try for a layer, and how large all of them may be."""

from collections.abc import Mapping, Sequence

import numpy as np

from powerinfer.train.predictors.goal import RANK_STEP
from powerinfer.values import FloatArray

__all__ = ["first_rank", "next_rank", "rank_limits"]

# Ranks closer to each other than this share are not told apart: each costs a training.
_RESOLUTION = 1 / 8
# Share of the hidden size that is the first rank of a layer that hardly ever fires.
_BASE = 0.3
# The hot neurons by which skew is judged.
_HOT_SHARE = 0.2


def rank_limits(max_parameters: int, rank_cost: int, densities: Sequence[float]) -> list[int]:
    """Largest rank of each layer: denser layers may have more, all together stay below the limit.

    A limit is a multiple of `RANK_STEP`, at least one step: a layer without any is not possible. If
    a layer ends below its limit, the rest can go to the layers after it: ask again with what is
    left. `rank_cost` is the parameters of a layer's predictor per unit of its rank.
    """
    steps = max_parameters // (rank_cost * RANK_STEP)
    wishes = [max(density, 1e-6) ** 0.25 for density in densities]
    limits = [1] * len(densities)
    for _ in range(steps - len(densities)):
        neediest = max(range(len(wishes)), key=lambda layer: wishes[layer] / limits[layer])
        limits[neediest] += 1
    return [RANK_STEP * limit for limit in limits]


def first_rank(frequencies: FloatArray, hidden_size: int, limit: int) -> int:
    """Choose the first rank: higher for dense layers, lower if few neurons make most activations.

    `frequencies` f32[num_neurons] is the share of the tokens that each neuron fires for; `limit`
    the largest rank, a multiple of `RANK_STEP`.
    """
    density = float(frequencies.mean())
    hot = np.sort(frequencies)[::-1][: max(1, int(len(frequencies) * _HOT_SHARE))]
    total = float(frequencies.sum())
    # 0 if all neurons fire equally often, 1 if the hot ones do all the firing.
    skew = max(0.0, (float(hot.sum()) / total - _HOT_SHARE) / (1 - _HOT_SHARE)) if total else 1.0
    return _rounded(hidden_size * (_BASE + density) * (1 - skew / 2), limit)


def next_rank(reached: Mapping[int, bool], limit: int) -> int | None:
    """The next rank to try, or None if the search is over.

    `reached` says of each rank tried, at least one, if it reached the goal.
    """
    failed = max((rank for rank, is_reached in reached.items() if not is_reached), default=0)
    if not any(reached.values()):
        return None if failed >= limit else _rounded(max(failed * 1.5, failed + RANK_STEP), limit)
    smallest = min(rank for rank, is_reached in reached.items() if is_reached)
    if smallest - failed <= max(RANK_STEP, smallest * _RESOLUTION):
        return None
    return _rounded((failed + smallest) / 2 if failed else smallest * 0.7, smallest - RANK_STEP)


def _rounded(rank: float, limit: int) -> int:
    """The nearest step, from one to the limit."""
    return min(max(round(rank / RANK_STEP), 1) * RANK_STEP, limit)
