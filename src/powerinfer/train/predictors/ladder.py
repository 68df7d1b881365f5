"""Which ranks to try, in search of the smallest one that reaches the goal."""

from collections.abc import Mapping

import numpy as np

from powerinfer.train.predictors.goal import RANK_STEP
from powerinfer.values import FloatArray

__all__ = ["first_rank", "next_rank"]

# Ranks closer to each other than this share are not told apart: each costs a training.
_RESOLUTION = 1 / 8
# Of the hidden size, the rank tried first for a layer that hardly ever fires.
_BASE = 0.3
# The hot neurons by which skew is judged.
_HOT_SHARE = 0.2


def first_rank(frequencies: FloatArray, hidden_size: int, limit: int) -> int:
    """Where to begin: higher for dense layers, lower where few neurons make most activations.

    Args:
        frequencies: f32[num_neurons], share of the tokens that each neuron fires for.
        hidden_size: of the model.
        limit: largest rank, a multiple of `RANK_STEP`.
    """
    density = float(frequencies.mean())
    hot = np.sort(frequencies)[::-1][: max(1, int(len(frequencies) * _HOT_SHARE))]
    total = float(frequencies.sum())
    # 0 if all neurons fire equally often, 1 if the hot ones do all the firing.
    skew = max(0.0, (float(hot.sum()) / total - _HOT_SHARE) / (1 - _HOT_SHARE)) if total else 1.0
    return _rounded(hidden_size * (_BASE + density) * (1 - skew / 2), limit)


def next_rank(reached: Mapping[int, bool], limit: int) -> int | None:
    """The next rank to try, or None if the search is over.

    Args:
        reached: of each rank tried, at least one, whether it reached the goal.
        limit: largest rank.
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
