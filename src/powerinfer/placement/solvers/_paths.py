"""Chains of growing choices.

They do not depend on the budget, so more memory only reaches further along them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from powerinfer.placement.solvers._choices import PartOptions

__all__ = ["Path", "hull", "hull_path", "previous_options"]

_Int = npt.NDArray[np.int64]
_Float = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Path:
    """A chain of choices: each step gives one part another option.

    Attributes:
        start: i64[parts], the choice before the first step.
        part: i64[steps], which part a step changes.
        option: i64[steps], its new option.
        held: i64[steps + 1], bytes before each step and after the last; they do not fall.
        cost: f64[steps + 1], cost before each step and after the last.
    """

    start: _Int
    part: _Int
    option: _Int
    held: _Int
    cost: _Float

    def last_within(self, capacity: int) -> int:
        """Return the number of steps that fit."""
        return int(np.searchsorted(self.held, capacity, side="right")) - 1

    def best_within(self, capacity: int) -> int:
        """Return the smallest number of steps with the least cost that fits."""
        return int(np.argmin(self.cost[: self.last_within(capacity) + 1]))

    def choice(self, steps: int) -> list[int]:
        """Return the option of each part after `steps` steps."""
        chosen = self.start.copy()
        # A later step of a part overwrites an earlier one.
        for part, option in zip(self.part[:steps], self.option[:steps], strict=True):
            chosen[part] = option
        return [int(option) for option in chosen]

    @classmethod
    def walk(cls, parts: Sequence[PartOptions], start: _Int, part: _Int, option: _Int) -> "Path":
        """Add up bytes and costs along the steps; exact, as costs are multiples of a fraction."""
        before = previous_options(start, part, option)
        held = np.zeros(len(part) + 1, np.int64)
        cost = np.zeros(len(part) + 1)
        for number, options in enumerate(parts):
            mine = np.flatnonzero(part == number)
            held[0] += options.held[start[number]]
            cost[0] += options.cost[start[number]]
            held[mine + 1] = options.held[option[mine]] - options.held[before[mine]]
            cost[mine + 1] = options.cost[option[mine]] - options.cost[before[mine]]
        return cls(start, part, option, np.cumsum(held), np.cumsum(cost))


def hull(options: PartOptions) -> _Int:
    """Return the options on the lower convex hull of cost over bytes, down to the cheapest.

    Returns:
        i64[k], k >= 1: with rising bytes, falling cost and falling gain per byte.
    """
    order = np.lexsort((options.cost, options.held))
    cost = options.cost[order]
    least_before = np.minimum.accumulate(np.concatenate([[np.inf], cost[:-1]]))
    chain: list[int] = []
    for index in order[cost < least_before]:
        while len(chain) >= 2 and _gain(options, chain[-1], index) >= _gain(options, *chain[-2:]):
            chain.pop()
        chain.append(int(index))
    return np.array(chain, np.int64)


def hull_path(parts: Sequence[PartOptions]) -> Path:
    """Walk down all hulls at once, always taking the step with the largest gain per byte.

    Each choice on the way is optimal for its bytes (the relaxed knapsack's optimum).
    """
    hulls = [hull(options) for options in parts]
    start = np.array([chain[0] for chain in hulls], np.int64)
    part = np.repeat(np.arange(len(hulls)), [len(chain) - 1 for chain in hulls])
    option = np.concatenate([chain[1:] for chain in hulls])
    # Rounding must not let a step overtake its predecessor in the same part.
    gains = [
        np.minimum.accumulate([_gain(options, *pair) for pair in pairwise(chain)])
        for options, chain in zip(parts, hulls, strict=True)
        if len(chain) > 1
    ]
    order = np.argsort(-np.concatenate(gains), kind="stable") if gains else np.arange(0)
    return Path.walk(parts, start, part[order], option[order])


def _gain(options: PartOptions, before: int, after: int) -> float:
    """Return the cost saved per additional byte; `after` takes strictly more bytes."""
    saved = options.cost[before] - options.cost[after]
    return float(saved / (options.held[after] - options.held[before]))


def previous_options(start: _Int, part: _Int, option: _Int) -> _Int:
    """Return the option of each step's part before it, i64[steps]."""
    before = np.empty(len(part), np.int64)
    for number, first in enumerate(start):
        mine = np.flatnonzero(part == number)
        before[mine] = np.concatenate([[first], option[mine][:-1]])[: len(mine)]
    return before
