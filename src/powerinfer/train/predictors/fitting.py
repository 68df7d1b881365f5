"""Fits one layer's predictor: the smallest one that finds the neurons that fire."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from powerinfer.errors import PowerInferError, ShapeError
from powerinfer.train.checkpoint import SavedState, load_checkpoint, save_checkpoint
from powerinfer.train.predictors.attempt import FittedLayer, LayerFigures, finish
from powerinfer.train.predictors.batches import BLOCK, read_firing
from powerinfer.train.predictors.goal import RANK_STEP, Goal
from powerinfer.train.predictors.layer_data import LayerData
from powerinfer.train.predictors.ranks import first_rank, next_rank
from powerinfer.train.predictors.training import Training
from powerinfer.values import FloatArray

__all__ = ["SAVE_SECONDS", "FitProgress", "FitStep", "FittedLayer", "LayerFigures", "fit_layer"]

SAVE_SECONDS = 60.0
"""Seconds of work that a kill may cost."""
# Tokens that tell how often neurons fire.
_SAMPLE_BLOCKS = 1024


@dataclass(frozen=True, slots=True)
class FitStep:
    """Progress of a fit: the steps made at the current rank, from 1."""

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

    No rank exceeds `rank_limit`, a multiple of `RANK_STEP`, whatever the recall. The same data,
    goal, limit, device, seed and number of threads give the same bits, however often the run was
    killed and resumed from `checkpoint`, which is not removed at the end.
    """
    _check(data, rank_limit)
    search = _Search(data, goal, rank_limit, torch.device(device), seed, checkpoint)
    while (rank := search.rank()) is not None:
        search.train(rank, progress)
    return search.result()


def _check(data: LayerData, rank_limit: int) -> None:
    if not 1 < data.num_train < data.num_tokens:
        raise ShapeError(
            f"layer {data.number}: of {data.num_tokens} tokens {data.num_train} are to train on; "
            "there must be some to train on and some held out"
        )
    if rank_limit < RANK_STEP or rank_limit % RANK_STEP:
        raise ShapeError(f"the largest rank is {rank_limit}; it must be a multiple of {RANK_STEP}")


@dataclass
class _Search:
    """The ranks tried so far, the best predictor among them, and the unfinished training."""

    data: LayerData
    goal: Goal
    limit: int
    device: torch.device
    seed: int
    checkpoint: Path | None
    reached: dict[int, bool] = field(default_factory=dict)
    best: FittedLayer | None = None
    unfinished: SavedState | None = None

    def __post_init__(self) -> None:
        self.recipe = _recipe(self.data, self.goal, self.limit, self.seed)
        state = None if self.checkpoint is None else load_checkpoint(self.checkpoint, self.recipe)
        if state:
            self.reached, self.unfinished = state["reached"], state["training"]
            if (best := state["best"]) is not None:
                fc1, fc2 = (best[name].numpy() for name in ("fc1", "fc2"))
                self.best = FittedLayer(fc1, fc2, LayerFigures(**best["figures"]))

    def rank(self) -> int | None:
        """The rank to train now; None at the end."""
        if not self.reached:
            return first_rank(_frequencies(self.data), self.data.hidden_size, self.limit)
        return next_rank(self.reached, self.limit)

    def train(self, rank: int, progress: FitProgress | None) -> None:
        """Train at a rank, or resume that, and record the result."""
        training = Training(self.data, rank, self.device, self.seed)
        if self.unfinished is not None:
            training.restore(self.unfinished)
            self.unfinished = None
        saved_at = time.monotonic()
        while training.step < training.num_steps:
            loss = training.advance()
            if time.monotonic() - saved_at >= SAVE_SECONDS:
                self._save(training)
                saved_at = time.monotonic()
            if progress is not None:
                progress(FitStep(rank, training.step, training.num_steps, loss))
        attempt = finish(training, self.data, self.goal)
        is_reached = attempt.figures.reaches(self.goal)
        # Ranks rise until one reaches the goal; what is tried after that is smaller.
        if is_reached or not any(self.reached.values()):
            self.best = attempt
        self.reached[rank] = is_reached
        self._save(None)

    def result(self) -> FittedLayer:
        """The smallest predictor that reached the goal, or else the largest."""
        if self.best is None:
            raise PowerInferError(f"layer {self.data.number}: no rank was tried")
        if self.best.figures.reaches(self.goal):
            return self.best
        return replace(self.best, warning=_shortcoming(self.best.figures, self.goal, self.limit))

    def _save(self, training: Training | None) -> None:
        if self.checkpoint is None:
            return
        best = self.best and {
            "fc1": torch.from_numpy(self.best.fc1),
            "fc2": torch.from_numpy(self.best.fc2),
            "figures": asdict(self.best.figures),
        }
        state = {
            "reached": self.reached,
            "best": best,
            "training": training and training.state(),
        }
        save_checkpoint(self.checkpoint, self.recipe, state)


def _shortcoming(figures: LayerFigures, goal: Goal, limit: int) -> str:
    """The part of the goal that a predictor misses, and why."""
    found = f"recall {figures.recall:.3f} instead of {goal.recall:g}"
    if figures.recall >= goal.recall and figures.is_error_measured:
        found = f"FFN error {figures.ffn_error:.3f} instead of {goal.max_ffn_error:g}"
    excess = figures.density / max(figures.active, 1e-9)
    return f"{found} at {excess:.2f} times the true density, as the rank may not exceed {limit}"


def _frequencies(data: LayerData) -> FloatArray:
    """Firing frequency of each neuron in a sample of the training text: f32[num_neurons].

    Of a neuron of an expert, the share of the tokens that were given to it.
    """
    starts = np.arange(0, data.num_train, BLOCK)
    starts = starts[:: max(1, len(starts) // _SAMPLE_BLOCKS)]
    counts, num_tokens = (np.zeros(data.num_neurons, np.int64) for _ in range(2))
    for start in starts:
        tokens = np.arange(int(start), min(int(start) + BLOCK, data.num_train), dtype=np.int64)
        for share in read_firing(data, tokens).shares():
            counts[share.neurons] += share.fires.sum(0).numpy()
            num_tokens[share.neurons] += len(share.fires)
    return (counts / np.maximum(num_tokens, 1)).astype(np.float32)


def _recipe(data: LayerData, goal: Goal, limit: int, seed: int) -> str:
    """Text of everything that decides a fit, with a sample of the data."""
    digest = hashlib.sha256(data.weights.tobytes())
    for part in (slice(0, BLOCK), slice(data.num_tokens - BLOCK, None)):
        digest.update(np.ascontiguousarray(data.inputs[part]).tobytes())
        digest.update(np.ascontiguousarray(data.fired[part]).tobytes())
        if data.experts is not None:
            digest.update(np.ascontiguousarray(data.experts[part]).tobytes())
    shape = (data.number, *data.inputs.shape, data.num_neurons, data.num_train, data.scale)
    return f"{shape} {goal} limit {limit} seed {seed} data {digest.hexdigest()}"
