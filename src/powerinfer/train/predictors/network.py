"""The predictor during training: two matrices, gradients worked out by hand, the stored form.

By hand, because the largest arrays, tokens times neurons, then take one pass each and half the
memory of automatic differentiation.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from powerinfer.errors import NumericsError
from powerinfer.train.predictors.batches import ExpertShare
from powerinfer.train.predictors.goal import THRESHOLD

__all__ = ["OFFSET", "Network", "stored"]

OFFSET = 2.0
"""Added to a neuron's score while training, so that useful working points are negative.

Only those can be moved to the stored threshold, which is negative, by a positive factor.
"""

# Weight of a neuron that fires over one that does not: moves the point where the loss is steepest
# to where few that fire are missed.
_FIRING_WEIGHT = 12.0


@dataclass(slots=True)
class Network:
    """``score = fc2 @ relu(fc1 @ x)`` for inputs of mean square 1.

    Experts share fc1; a token's scores are those of the neurons of its experts.

    Attributes:
        fc1: f32[rank, hidden_size].
        fc2: f32[num_neurons, rank], the neurons of each expert one after the other.
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

    def hidden(self, x: Tensor) -> Tensor:
        """f32[n, rank], from x f32[n, hidden_size]."""
        return torch.relu(x @ self.fc1.T)

    def scores(self, hidden: Tensor, share: ExpertShare) -> Tensor:
        """f32[n, expert_size], for the tokens of an expert."""
        return hidden[share.tokens] @ self.fc2[share.neurons].T

    def learn(self, x: Tensor, shares: Iterable[ExpertShare], dtype: torch.dtype) -> Tensor:
        """Set the gradients of both matrices, and return the mean loss, a scalar.

        The loss is the weighted binary cross-entropy per neuron, for inputs f32[n, hidden_size] and
        the neurons of the experts that they are given to. Matrices are multiplied in `dtype`.
        """
        x, fc1, fc2 = x.to(dtype), self.fc1.to(dtype), self.fc2.to(dtype)
        before = x @ fc1.T
        hidden = torch.relu(before)
        back, gradient = torch.zeros_like(hidden), torch.zeros_like(self.fc2)
        loss, count = torch.zeros((), device=x.device), 0
        for share in shares:
            seen, own = hidden[share.tokens], fc2[share.neurons]
            slope, lost = _slopes((seen @ own.T).float() + OFFSET, share.fires.float())
            loss, count = loss + lost, count + slope.numel()
            slope = slope.div_(len(x)).to(dtype)
            gradient[share.neurons] = (slope.T @ seen).float()
            back[share.tokens] += slope @ own
        self.fc2.grad = gradient
        self.fc1.grad = ((back * (before > 0)).T @ x).float()
        return loss / max(1, count)


def _slopes(scores: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives of the losses by the scores, and the sum of the losses; `wanted` is 0 or 1."""
    chance = torch.sigmoid(scores)
    weight = 1 + (_FIRING_WEIGHT - 1) * wanted
    slope = (chance - wanted).mul_(weight)
    right = (1 - (chance - wanted).abs_()).clamp_min_(1e-9)
    return slope, -(right.log_().mul_(weight)).sum()


def stored(network: Network, input_scale: float, thresholds: Tensor, layer: int) -> Network:
    """Matrices as a file stores them, f16, for unscaled inputs and its one threshold.

    `input_scale` is the factor of the model's inputs in training; `thresholds` f32[num_neurons] are
    negative, or -infinity for neurons that always pass.
    """
    fc1 = network.fc1 * input_scale
    fc2 = network.fc2 * (THRESHOLD / thresholds)[:, None]
    # A unit's row of fc1 may be made larger if its column of fc2 is made smaller: where both are
    # equally large, both are farthest from the limits of F16. Powers of two round nothing.
    first, second = fc1.abs().amax(1), fc2.abs().amax(0)
    is_alive = (first > 0) & (second > 0)
    ratio = torch.where(is_alive, second / first.clamp_min(1e-30), torch.ones_like(first))
    factor = torch.exp2((torch.log2(ratio) / 2).round())
    # Adding 0 leaves no negative zeros.
    halves = Network((fc1 * factor[:, None]).half() + 0.0, (fc2 / factor).half() + 0.0)
    if not (halves.fc1.isfinite().all() and halves.fc2.isfinite().all()):
        raise NumericsError(f"layer {layer}: weights of the predictor are too large for F16")
    return halves
