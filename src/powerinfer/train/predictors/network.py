"""The predictor while it is trained: two matrices, their gradients worked out by hand.

By hand, because the largest arrays, tokens times neurons, then take one pass each and half the
memory of automatic differentiation.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["OFFSET", "Network"]

OFFSET = 2.0
"""What is added to a neuron's score while training, so that useful working points are negative.

Only those can be moved to the stored threshold, which is negative, by a positive factor.
"""

# What a neuron that fires counts more than one that does not: moves the point where the loss is
# steepest to where few that fire are missed.
_FIRING_WEIGHT = 12.0


@dataclass(slots=True)
class Network:
    """``score = fc2 @ relu(fc1 @ x)`` for inputs of mean square 1.

    Attributes:
        fc1: f32[rank, hidden_size].
        fc2: f32[num_neurons, rank].
    """

    fc1: Tensor
    fc2: Tensor

    @classmethod
    def random(cls, rank: int, hidden_size: int, num_neurons: int, seed: int) -> "Network":
        """Initial weights; the same on all devices."""
        generator = torch.Generator().manual_seed(seed)
        fc1 = torch.randn(rank, hidden_size, generator=generator) / math.sqrt(hidden_size)
        fc2 = torch.randn(num_neurons, rank, generator=generator) * (0.5 / math.sqrt(rank))
        return cls(fc1, fc2)

    def scores(self, x: Tensor) -> Tensor:
        """f32[n, num_neurons], from x f32[n, hidden_size]."""
        return torch.relu(x @ self.fc1.T) @ self.fc2.T

    def learn(self, x: Tensor, fires: Tensor, dtype: torch.dtype) -> Tensor:
        """Set the gradients of both matrices.

        Args:
            x: f32[n, hidden_size].
            fires: u8[n, num_neurons], 0 or 1.
            dtype: to multiply matrices in.

        Returns:
            The mean loss (weighted binary cross-entropy per neuron), a scalar.
        """
        x, fc1, fc2 = x.to(dtype), self.fc1.to(dtype), self.fc2.to(dtype)
        before = x @ fc1.T
        hidden = torch.relu(before)
        chance = torch.sigmoid((hidden @ fc2.T).float() + OFFSET)
        wanted = fires.float()
        weight = 1 + (_FIRING_WEIGHT - 1) * wanted
        slope = (chance - wanted).mul_(weight)
        right = (1 - (chance - wanted).abs_()).clamp_min_(1e-9)
        loss = -(right.log_().mul_(weight)).mean()
        slope = slope.div_(len(x)).to(dtype)
        self.fc2.grad = (slope.T @ hidden).float()
        self.fc1.grad = (((slope @ fc2) * (before > 0)).T @ x).float()
        return loss
