"""One rank tried: the stored matrices at their best working point, and what they do."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from powerinfer.offline.predictors.batches import BLOCK, read_tokens, unpack
from powerinfer.offline.predictors.goal import THRESHOLD, Goal
from powerinfer.offline.predictors.layer_data import LayerData
from powerinfer.offline.predictors.network import Network
from powerinfer.offline.predictors.storing import stored
from powerinfer.offline.predictors.training import Training
from powerinfer.offline.predictors.working_point import (
    ScoreCounts,
    WorkingPoints,
    choose_thresholds,
)

__all__ = ["Attempt", "LayerFigures", "finish"]

# Tokens that thresholds are fitted to, and those of held-out text that are looked at.
_TRAIN_TOKENS, _HELD_OUT_TOKENS = 1 << 15, 1 << 16
# Numbers for tokens times neurons, or times hidden units, that are in memory at once.
_CHUNK = 1 << 22
# Above the goal, as the text of tomorrow is not exactly that of today.
_MARGIN = 0.002
# How often to aim higher if rounding to F16 took the recall below the goal.
_TRIES = 4


@dataclass(frozen=True, slots=True)
class LayerFigures:
    """How well a predictor as stored does at the file's threshold, on held-out text.

    Attributes:
        active: share of the neurons that fire.
        density: share of the neurons that pass.
        recall: share of those that fire which pass; 1 if none fires.
        precision: share of those that pass which fire; 1 if none passes.
        ffn_error: estimate of the relative error of the FFN's output, from the mean squares of what
            each neuron adds. Too high, as what is missed is mostly small.
    """

    active: float
    density: float
    recall: float
    precision: float
    ffn_error: float

    def reaches(self, goal: Goal) -> bool:
        """Whether recall and density are as they must be."""
        return self.recall >= goal.recall and self.density <= goal.max_density * self.active


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """A predictor at one rank: f16 matrices on the CPU, and its figures."""

    fc1: Tensor
    fc2: Tensor
    figures: LayerFigures

    @property
    def rank(self) -> int:
        """Rows of fc1."""
        return len(self.fc1)


def finish(training: Training, data: LayerData, goal: Goal) -> Attempt:
    """Choose the working points of a trained network and measure it as it will be stored.

    Raises:
        NumericsError: an input is NaN or infinite, or a weight beyond what F16 can hold.
    """
    network, device = training.network, training.device
    train, held_out = (ScoreCounts(data.num_neurons, device) for _ in range(2))
    for counts, first, last, most in (
        (train, 0, data.num_train, _TRAIN_TOKENS),
        (held_out, data.num_train, data.num_tokens, _HELD_OUT_TOKENS),
    ):
        for x, fires in _chunks(data, first, last, most, device):
            counts.add(network.scores(x * training.input_scale), fires)
    points = WorkingPoints.of(train, torch.from_numpy(data.weights).to(device))
    recall = min(1.0, goal.recall + _MARGIN)
    for _ in range(_TRIES):
        thresholds = choose_thresholds(points, held_out, recall, goal.max_density)
        halves = stored(network, training.input_scale / data.scale, thresholds, data.number)
        figures = measure(halves, data, device)
        if figures.reaches(goal) or figures.recall >= goal.recall:
            break
        recall = min(1.0, recall + 2 * (goal.recall - figures.recall))
    return Attempt(halves.fc1.cpu(), halves.fc2.cpu(), figures)


def measure(halves: Network, data: LayerData, device: torch.device) -> LayerFigures:
    """What stored matrices do on held-out text."""
    # In F64 the sums below are exact, and the same on all devices.
    fired, hit = (
        torch.zeros(data.num_neurons, dtype=torch.float64, device=device) for _ in range(2)
    )
    passed, num_tokens = 0, 0
    network = Network(halves.fc1.float(), halves.fc2.float())
    for x, fires in _chunks(data, data.num_train, data.num_tokens, _HELD_OUT_TOKENS, device):
        passes = network.scores(x * data.scale) >= THRESHOLD
        fired += fires.sum(0)
        hit += (fires * passes).sum(0)
        passed += int(passes.sum())
        num_tokens += len(x)
    pairs = num_tokens * data.num_neurons
    weights = torch.from_numpy(data.weights).to(device).double()
    lost, total = float(((fired - hit) * weights).sum()), float((fired * weights).sum())
    num_fired, num_hit = float(fired.sum()), float(hit.sum())
    return LayerFigures(
        active=num_fired / pairs,
        density=passed / pairs,
        recall=num_hit / num_fired if num_fired else 1.0,
        precision=num_hit / passed if passed else 1.0,
        ffn_error=(lost / total) ** 0.5 if total > 0 else 0.0,
    )


def _chunks(
    data: LayerData, first: int, last: int, most: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs as f32 and bits as u8 of 0 and 1, of at most so many tokens, evenly from a range."""
    starts = np.arange(first, last, BLOCK)
    starts = starts[:: max(1, -(-len(starts) * BLOCK // most))]
    tokens = (starts[:, None] + np.arange(BLOCK)).ravel()
    tokens = tokens[tokens < last]
    size = max(BLOCK, _CHUNK // max(data.num_neurons, data.hidden_size))
    for start in range(0, len(tokens), size):
        inputs, fired = read_tokens(data, tokens[start : start + size], "measuring")
        yield inputs.to(device).float(), unpack(fired.to(device), data.num_neurons)
