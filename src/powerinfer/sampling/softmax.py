"""Exponentials of a row of logits, added up in groups, and drawing by them.

Exponentials are f32, their sums in a group of 512 f32 too, and the sums of groups f64. Groups are
fixed ranges of token ids, so that nothing depends on anything but the row.
"""

import math
from functools import cached_property

import numpy as np
import numpy.typing as npt

from powerinfer.values import FloatArray

__all__ = ["Softmax", "draw", "place_of_share"]

_GROUP_SIZE = 512
Sums = npt.NDArray[np.float64]


class Softmax:
    """The softmax of a row; each part is computed when it is first asked for.

    Attributes:
        row: f32[vocab_size]; minus infinity for tokens that cannot be. It must not change.
    """

    def __init__(self, row: FloatArray) -> None:
        self.row = row

    @cached_property
    def highest(self) -> float:
        """The largest logit."""
        return float(self.row.max())

    @cached_property
    def weights(self) -> FloatArray:
        """f32[vocab_size], exp(logit - highest)."""
        return exponentials(self.row, self.highest)

    @cached_property
    def total(self) -> float:
        """Sum of the weights."""
        return float(group_sums(self.weights).sum())

    @cached_property
    def log_sum(self) -> float:
        """Log of the sum of the exponentials of the logits."""
        return self.highest + math.log(self.total)


def exponentials(logits: FloatArray, highest: float, temperature: float = 1) -> FloatArray:
    """f32 exp((logit - highest) / temperature)."""
    weights: FloatArray = logits - np.float32(highest)
    if temperature != 1:
        # Beyond these limits all logits are alike or all but the largest are nothing in f32.
        with np.errstate(over="ignore"):
            weights /= np.float32(min(max(temperature, 1e-30), 1e30))
    np.exp(weights, out=weights)
    return weights


def group_sums(weights: FloatArray) -> Sums:
    """f64 sums of the groups of f32 weights."""
    num_whole = len(weights) // _GROUP_SIZE
    end = num_whole * _GROUP_SIZE
    sums = np.empty(num_whole + 1, np.float64)
    sums[:num_whole] = weights[:end].reshape(num_whole, _GROUP_SIZE).sum(axis=1)
    sums[num_whole] = weights[end:].sum()
    return sums


def draw(weights: FloatArray, share: float) -> int:
    """The place among f32 weights that holds a share of their sum; never one of weight 0.

    Args:
        weights: not all 0.
        share: from 0 to 1.
    """
    sums = np.cumsum(group_sums(weights))
    wanted = share * sums[-1]
    group = _behind(sums, wanted)
    begin = group * _GROUP_SIZE
    inner = np.cumsum(weights[begin : begin + _GROUP_SIZE], dtype=np.float64)
    return begin + _behind(inner, wanted - (sums[group - 1] if group else 0))


def place_of_share(weights: FloatArray, wanted: float) -> int | None:
    """The first place up to which f32 weights add up to `wanted`; None if all together do not."""
    sums = np.cumsum(group_sums(weights))
    if sums[-1] < wanted:
        return None
    group = int(np.searchsorted(sums, wanted, side="left"))
    begin = group * _GROUP_SIZE
    inner = np.cumsum(weights[begin : begin + _GROUP_SIZE], dtype=np.float64)
    rest = wanted - (sums[group - 1] if group else 0)
    return begin + min(int(np.searchsorted(inner, rest, side="left")), len(inner) - 1)


def _behind(sums: Sums, wanted: float) -> int:
    """The first place whose sum is above `wanted`.

    A sum may be rounded to below it, so at most the last place that adds anything.
    """
    found = int(np.searchsorted(sums, wanted, side="right"))
    return min(found, int(np.searchsorted(sums, sums[-1], side="left")))
