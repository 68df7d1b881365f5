"""Intervals that hold the true value in 95 of 100 samples."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Interval", "mean_interval", "share_interval"]

_Z = 1.959964
_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


def share_interval(successes: int, count: int) -> Interval:
    """Estimate a probability, with Wilson's interval; `count` is at least 1."""
    share = successes / count
    spread = _Z**2 / count
    middle = (share + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    # Rounding must not push a bound past the share itself.
    return Interval(share, min(max(middle - half, 0.0), share), max(min(middle + half, 1.0), share))


def mean_interval(values: Sequence[float]) -> Interval:
    """Estimate a mean, with a bootstrap interval of percentiles; there must be one value.

    The same number of values is always resampled alike, so that policies that did the same tasks
    are compared on the same samples.
    """
    found = np.asarray(values, dtype=np.float64)
    choice = np.random.default_rng(0)
    means = found[choice.integers(0, len(found), (_RESAMPLES, len(found)))].mean(axis=1)
    low, high = np.percentile(means, (2.5, 97.5))
    return Interval(float(found.mean()), float(low), float(high))
