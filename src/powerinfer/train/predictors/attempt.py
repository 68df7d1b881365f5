"""One rank tried: the stored matrices at their best working point, and their figures."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from powerinfer.train.predictors.batches import BLOCK, TokenBlock, read_tokens
from powerinfer.train.predictors.goal import THRESHOLD, Goal
from powerinfer.train.predictors.layer_data import HalfArray, LayerData
from powerinfer.train.predictors.network import Network, stored
from powerinfer.train.predictors.training import Training
from powerinfer.train.predictors.working_point import (
    PASS_ALL,
    ScoreCounts,
    WorkingPoints,
    choose_thresholds,
)

__all__ = ["FittedLayer", "LayerFigures", "finish"]

# Most tokens that are looked at.
_MOST_TOKENS = 1 << 16
# Numbers for tokens times neurons, or times hidden units, that are in memory at once.
_CHUNK = 1 << 22
# Added to the goal, as tomorrow's text is not exactly today's.
_MARGIN = 0.002
# Neurons of experts that fewer tokens than this say something about always pass.
_LEAST_SEEN = 64
# Attempts to aim higher, if the FFN's error is too large or rounding to F16 cost recall.
_TRIES = 6


@dataclass(frozen=True, slots=True)
class LayerFigures:
    """Figures of a predictor as stored, at the file's threshold, on held-out text.

    Attributes:
        recall: share of the firing neurons that pass; 1 if none fires.
        precision: share of the passing neurons that fire; 1 if none passes.
        ffn_error: relative error of the FFN's output. Where the layer's data cannot measure it, an
            estimate from the mean squares of what each neuron adds: too high, as what is missed is
            mostly small.
        is_error_measured: it is not an estimate.
    """

    active: float
    density: float
    recall: float
    precision: float
    ffn_error: float
    is_error_measured: bool = False

    def reaches(self, goal: Goal) -> bool:
        """Check all of the goal: no more neurons pass than may, and enough of the firing ones."""
        return self.density <= goal.max_density * self.active and self.is_complete(goal)

    def is_complete(self, goal: Goal) -> bool:
        """Check that enough of the firing neurons pass."""
        is_close = not self.is_error_measured or self.ffn_error <= goal.max_ffn_error
        return self.recall >= goal.recall and is_close


@dataclass(frozen=True, slots=True, eq=False)
class FittedLayer:
    """A trained predictor: a neuron passes if ``fc2 @ relu(fc1 @ x)`` is at least `THRESHOLD`.

    Attributes:
        fc1: f16[rank, hidden_size].
        fc2: f16[num_neurons, rank].
        warning: one sentence if it misses the goal, as no larger rank is allowed; otherwise empty.
    """

    fc1: HalfArray
    fc2: HalfArray
    figures: LayerFigures
    warning: str = ""

    @property
    def rank(self) -> int:
        """Rows of fc1."""
        return len(self.fc1)


def finish(training: Training, data: LayerData, goal: Goal) -> FittedLayer:
    """Choose the working points of a trained network and measure it as it will be stored."""
    network, device = training.network, training.device
    tuned, held_out = (ScoreCounts(data.num_neurons, device) for _ in range(2))
    for counts, first, last in (
        (tuned, data.num_learned, data.num_train),
        (held_out, data.num_train, data.num_tokens),
    ):
        for block in _chunks(data, first, last, device):
            hidden = network.hidden(block.inputs.float() * training.input_scale)
            for share in block.shares():
                counts.add(network.scores(hidden, share), share.fires, share.neurons)
    points = WorkingPoints.of(tuned, torch.from_numpy(data.weights).to(device))
    is_unknown = tuned.num_tokens < (0 if data.experts is None else _LEAST_SEEN)
    recall = min(1.0, goal.recall + _MARGIN)
    for _ in range(_TRIES):
        thresholds = choose_thresholds(points, held_out, recall, goal.max_density)
        thresholds[is_unknown] = PASS_ALL
        halves = stored(network, training.input_scale / data.scale, thresholds, data.number)
        figures = measure(halves, data, device)
        # If the density is at its limit, recall stays below what was asked for.
        if figures.is_complete(goal) or figures.recall < recall - 2 * _MARGIN:
            break
        recall += (1 - recall) / 4
    return FittedLayer(halves.fc1.cpu().numpy(), halves.fc2.cpu().numpy(), figures)


def measure(halves: Network, data: LayerData, device: torch.device) -> LayerFigures:
    """Measure stored matrices on held-out text."""
    # In F64 the sums below are exact, and the same on all devices.
    fired, hit = (
        torch.zeros(data.num_neurons, dtype=torch.float64, device=device) for _ in range(2)
    )
    passed, pairs = 0, 0
    network = Network(halves.fc1.float(), halves.fc2.float())
    for block in _chunks(data, data.num_train, data.num_tokens, device):
        hidden = network.hidden(block.inputs.float() * data.scale)
        for share in block.shares():
            passes = network.scores(hidden, share) >= THRESHOLD
            fired[share.neurons] += share.fires.sum(0)
            hit[share.neurons] += (share.fires * passes).sum(0)
            passed += int(passes.sum())
            pairs += passes.numel()
    weights = torch.from_numpy(data.weights).to(device).double()
    lost, total = float(((fired - hit) * weights).sum()), float((fired * weights).sum())
    error = (lost / total) ** 0.5 if total > 0 else 0.0
    if data.ffn_error is not None:
        error = data.ffn_error(halves.fc1.cpu().numpy(), halves.fc2.cpu().numpy())
    num_fired, num_hit = float(fired.sum()), float(hit.sum())
    return LayerFigures(
        active=num_fired / pairs,
        density=passed / pairs,
        recall=num_hit / num_fired if num_fired else 1.0,
        precision=num_hit / passed if passed else 1.0,
        ffn_error=error,
        is_error_measured=data.ffn_error is not None,
    )


def _chunks(data: LayerData, first: int, last: int, device: torch.device) -> Iterator[TokenBlock]:
    """Blocks of a range of tokens, or of an even sample of it."""
    starts = np.arange(first, last, BLOCK)
    starts = starts[:: max(1, -(-len(starts) * BLOCK // _MOST_TOKENS))]
    tokens = (starts[:, None] + np.arange(BLOCK)).ravel()
    tokens = tokens[tokens < last]
    size = max(BLOCK, _CHUNK // max(data.sizes.expert_size, data.hidden_size))
    for start in range(0, len(tokens), size):
        yield read_tokens(data, tokens[start : start + size], "measuring").to(device)
