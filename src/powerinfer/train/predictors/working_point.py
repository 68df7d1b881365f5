"""Chooses the score from which each neuron passes, and writes it into the stored matrices.

The file has one threshold for all neurons. A row of `fc2` times a positive number only moves that
neuron's own working point, so rows are scaled until all of them lie at the file's threshold.
"""

from bisect import bisect_left
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["PASS_ALL", "ScoreCounts", "WorkingPoints", "choose_thresholds", "count_bytes"]

PASS_ALL = float("-inf")
"""Threshold of a neuron that always passes: it gets a row of zeros."""

# Scores that thresholds are chosen among. Above the highest a row would need too large a factor.
_LOWEST, _STEP, _NUM_BINS = -24.0, 0.0625, 382
# Numbers sorted into bins at once.
_CHUNK = 1 << 22
# Share of a miss's cost that is the same for all neurons; the rest goes by what the neuron adds.
_EQUAL_SHARE = 0.5
# Prices of a hit, in passes: the least, the factor between neighbours, how many.
_LEAST_PRICE, _NEXT_PRICE, _NUM_PRICES = 1e-2, 1.002, 7000
_NUM_LEVELS = _NUM_PRICES + _NUM_BINS


def count_bytes(num_neurons: int) -> int:
    """Memory that choosing the thresholds of a layer takes, about."""
    # Two `ScoreCounts`, hits and passes of both, and some six arrays on the way to a threshold: a
    # little more than a process was seen to take.
    return num_neurons * _NUM_BINS * 4 * (4 + 4 + 6)


class ScoreCounts:
    """Counts of each neuron's scores, i32[num_neurons, num_bins].

    `fired` counts those of tokens that the neuron fired for, `all` those of all tokens.
    """

    def __init__(self, num_neurons: int, device: torch.device) -> None:
        shape = (num_neurons, _NUM_BINS)
        self.fired = torch.zeros(shape, dtype=torch.int32, device=device)
        self.all = torch.zeros(shape, dtype=torch.int32, device=device)

    def add(self, scores: Tensor, fires: Tensor, neurons: slice = slice(None)) -> None:
        """Count scores f32[n, size], with fires u8[n, size] of 0 and 1, for some neurons."""
        num_neurons = scores.shape[1]
        rows = torch.arange(num_neurons, device=scores.device) * _NUM_BINS
        size = max(1, _CHUNK // num_neurons)
        for part, hits in zip(scores.split(size), fires.split(size), strict=True):
            # Bin i holds scores from edge i - 1 up to edge i.
            above = ((part - _LOWEST) * (1 / _STEP)).floor_().clamp_(-1, _NUM_BINS - 2)
            bins = above.long().add_(1 + rows)
            for counts, cells in ((self.all, bins), (self.fired, bins[hits != 0])):
                own = counts[neurons]
                found = torch.bincount(cells.flatten(), minlength=own.numel())
                own += found.view_as(own)

    @property
    def num_fired(self) -> int:
        """Pairs of token and neuron that fired."""
        return int(self.fired.sum())

    @property
    def num_tokens(self) -> Tensor:
        """Tokens that each neuron was scored for: i64[num_neurons]."""
        return self.all.sum(1)


def edges(device: torch.device) -> Tensor:
    """Thresholds to choose among, rising, `PASS_ALL` first: f32[num_bins]."""
    rising = torch.arange(_NUM_BINS - 1, device=device) * _STEP + _LOWEST
    return torch.cat([torch.full((1,), PASS_ALL, device=device), rising])


@dataclass(frozen=True, slots=True)
class WorkingPoints:
    """A row of choices, from few neurons that pass to all.

    The threshold of a neuron is where price * cost * hits - passes is highest on a part of the
    training text: passes are tokens that pass, hits those of them that fired. All neurons thus buy
    hits at the same price, and only the price remains to be chosen. Beyond the highest price, when
    every hit there has been bought, all thresholds go down by the same steps.

    Attributes:
        hits: f32[num_neurons, num_bins], tokens that pass at each edge and fired.
        passes: f32[num_neurons, num_bins], tokens that pass.
        cost: f32[num_neurons, 1], cost of a miss, 1 on average.
    """

    hits: Tensor
    passes: Tensor
    cost: Tensor

    @classmethod
    def of(cls, counts: ScoreCounts, weights: Tensor) -> "WorkingPoints":
        """Plan from counts on text to fit thresholds to, and weights f32[num_neurons] of a miss."""
        fired = counts.fired.sum(1).double()
        total = float((fired * weights).sum())
        mean = total / float(fired.sum()) if total > 0 else 0.0
        relative = weights / mean if mean > 0 else torch.ones_like(weights)
        cost = _EQUAL_SHARE + (1 - _EQUAL_SHARE) * relative
        return cls(_from_above(counts.fired), _from_above(counts.all), cost.float()[:, None])

    def bins(self, level: int) -> Tensor:
        """Edge of each neuron's threshold, at a level below `_NUM_LEVELS`: i64[num_neurons]."""
        price = _LEAST_PRICE * _NEXT_PRICE ** min(level, _NUM_PRICES - 1)
        gain = self.hits * (self.cost * price) - self.passes
        # The highest of equal thresholds: fewest pass.
        best = gain.shape[1] - 1 - gain.flip(1).argmax(1)
        return (best - max(0, level - _NUM_PRICES + 1)).clamp_min(0)


def choose_thresholds(
    points: WorkingPoints, held_out: ScoreCounts, recall: float, max_density: float
) -> Tensor:
    """Thresholds that reach the recall on held-out text: f32[num_neurons], negative or `PASS_ALL`.

    No more than `max_density` neurons pass for each that fires, whatever that costs in recall.
    """
    hits, passes = _from_above(held_out.fired), _from_above(held_out.all)
    num_fired = held_out.num_fired

    def is_recalled(level: int) -> bool:
        return float(hits.gather(1, points.bins(level)[:, None]).sum()) >= recall * num_fired

    def is_too_dense(level: int) -> bool:
        passing = float(passes.gather(1, points.bins(level)[:, None]).sum())
        return num_fired > 0 and passing > max_density * num_fired

    level = bisect_left(range(_NUM_LEVELS - 1), True, key=is_recalled)  # noqa: FBT003
    if is_too_dense(level):
        level = max(0, bisect_left(range(level), True, key=is_too_dense) - 1)  # noqa: FBT003
    return edges(hits.device)[points.bins(level)]


def _from_above(counts: Tensor) -> Tensor:
    """Number of scores at or above each edge: f32[num_neurons, num_bins]."""
    return counts.flip(1).cumsum(1, dtype=torch.int32).flip(1).float()
