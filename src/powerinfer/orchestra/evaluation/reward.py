"""The one objective of correctness and cost, that of Uno-Orchestra (arXiv 2605.05007).

A run that is invalid or wrong is worth 0, a right one (1 - a) + a * R_cost, with
R_cost = 1 - clip((sqrt c - p5) / (p95 - p5), 0, 1). p5 and p95 are percentiles of sqrt c over the
last episodes; without spread R_cost is 0.5.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["WINDOW", "CostScale", "Objective"]

WINDOW = 1000
"""Episodes that a scale looks back on."""


@dataclass(frozen=True, slots=True)
class CostScale:
    """Percentiles 5 and 95 of the square root of costs."""

    low: float
    high: float

    @classmethod
    def of(cls, costs: Sequence[float]) -> "CostScale":
        """Measure the last `WINDOW` costs; there must be one."""
        low, high = np.percentile(np.sqrt(costs[-WINDOW:]), (5, 95))
        return cls(float(low), float(high))

    def cost_reward(self, cost: float) -> float:
        """Return R_cost, from 0 for the dearest to 1 for the cheapest."""
        if self.high <= self.low:
            return 0.5
        share = (math.sqrt(cost) - self.low) / (self.high - self.low)
        return 1.0 - min(max(share, 0.0), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Rewards of episodes.

    Attributes:
        cost_weight: the a of the formula, from 0 (correctness alone) to 1.
        second_price: price of a second, in the pool's currency; the cost of an episode is its price
            plus that of its seconds.
    """

    scale: CostScale
    cost_weight: float = 0.1
    second_price: float = 1.0

    def cost(self, seconds: float, price: float) -> float:
        """Add the price of seconds."""
        return price + self.second_price * seconds

    def of_right(self, cost: float) -> float:
        """Return the reward of a right answer."""
        return 1.0 - self.cost_weight * (1.0 - self.scale.cost_reward(cost))

    def reward(self, cost: float, *, is_right: bool, is_valid: bool = True) -> float:
        """Return the reward of an episode."""
        return self.of_right(cost) if is_right and is_valid else 0.0
