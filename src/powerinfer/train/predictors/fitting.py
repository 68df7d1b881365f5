"""Fits one layer's predictor: the smallest one that finds the neurons that fire."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from powerinfer.errors import PowerInferError, ShapeError
from powerinfer.train.checkpoint import SavedState, load_checkpoint, save_checkpoint
from powerinfer.train.predictors.attempt import Attempt, LayerFigures, finish
from powerinfer.train.predictors.batches import BLOCK
from powerinfer.train.predictors.goal import RANK_STEP, Goal
from powerinfer.train.predictors.ladder import first_rank, next_rank
from powerinfer.train.predictors.layer_data import HalfArray, LayerData
from powerinfer.train.predictors.training import Training
from powerinfer.values import FloatArray

__all__ = ["SAVE_SECONDS", "FitProgress", "FitStep", "FittedLayer", "LayerFigures", "fit_layer"]

SAVE_SECONDS = 60.0
"""Seconds of work that a kill may cost."""
# Tokens that tell how often neurons fire.
_SAMPLE_BLOCKS = 1024


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
        NumericsError: an input or the loss is NaN or infinite; says layer and step. What was saved
            before stays.
        PowerInferError: the checkpoint cannot be written, is damaged or of another run.
        ShapeError: there are no tokens to train on or none held out, or the limit is no rank.
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


class _Search:
    """The ranks tried so far, the best predictor among them, and the training that goes on."""

    def __init__(
        self,
        data: LayerData,
        goal: Goal,
        limit: int,
        device: torch.device,
        seed: int,
        checkpoint: Path | None,
    ) -> None:
        self._data, self._goal, self._limit = data, goal, limit
        self._device, self._seed, self._checkpoint = device, seed, checkpoint
        self._reached: dict[int, bool] = {}
        self._best: Attempt | None = None
        self._unfinished: SavedState | None = None
        self._recipe = _recipe(data, goal, limit, seed)
        if checkpoint is not None and (state := load_checkpoint(checkpoint, self._recipe)):
            self._restore(state)

    def rank(self) -> int | None:
        """The rank to train now; None at the end."""
        if not self._reached:
            return first_rank(_frequencies(self._data), self._data.hidden_size, self._limit)
        return next_rank(self._reached, self._limit)

    def train(self, rank: int, progress: FitProgress | None) -> None:
        """Train at a rank, or go on with it, and note what came of it."""
        training = Training(self._data, rank, self._device, self._seed)
        if self._unfinished is not None:
            training.restore(self._unfinished)
            self._unfinished = None
        saved_at = time.monotonic()
        while training.step < training.num_steps:
            loss = training.advance()
            if time.monotonic() - saved_at >= SAVE_SECONDS:
                self._save(training)
                saved_at = time.monotonic()
            if progress is not None:
                progress(FitStep(rank, training.step, training.num_steps, loss))
        attempt = finish(training, self._data, self._goal)
        is_reached = attempt.figures.reaches(self._goal)
        # Ranks rise until one reaches the goal; what is tried after that is smaller.
        if is_reached or not any(self._reached.values()):
            self._best = attempt
        self._reached[rank] = is_reached
        self._save(None)

    def result(self) -> FittedLayer:
        """The smallest predictor that reached the goal, or else the largest."""
        best = self._best
        if best is None:
            raise PowerInferError(f"layer {self._data.number}: no rank was tried")
        warning = ""
        if not best.figures.reaches(self._goal):
            warning = _shortcoming(best.figures, self._goal, self._limit)
        return FittedLayer(best.fc1.numpy(), best.fc2.numpy(), best.figures, warning)

    def _save(self, training: Training | None) -> None:
        if self._checkpoint is None:
            return
        best = self._best and {
            "fc1": self._best.fc1,
            "fc2": self._best.fc2,
            "figures": asdict(self._best.figures),
        }
        state = {
            "reached": self._reached,
            "best": best,
            "training": training and training.state(),
        }
        save_checkpoint(self._checkpoint, self._recipe, state)

    def _restore(self, state: SavedState) -> None:
        self._reached, self._unfinished = state["reached"], state["training"]
        if state["best"] is not None:
            found = state["best"]
            self._best = Attempt(found["fc1"], found["fc2"], LayerFigures(**found["figures"]))


def _shortcoming(figures: LayerFigures, goal: Goal, limit: int) -> str:
    """What a predictor misses, and why."""
    found = f"recall {figures.recall:.3f} instead of {goal.recall:g}"
    if figures.recall >= goal.recall and figures.is_error_measured:
        found = f"FFN error {figures.ffn_error:.3f} instead of {goal.max_ffn_error:g}"
    excess = figures.density / max(figures.active, 1e-9)
    return f"{found} at {excess:.2f} times the true density, as the rank may not exceed {limit}"


def _frequencies(data: LayerData) -> FloatArray:
    """How often each neuron fires, in a sample of the training text: f32[num_neurons]."""
    starts = np.arange(0, data.num_train, BLOCK)
    starts = starts[:: max(1, len(starts) // _SAMPLE_BLOCKS)]
    counts, num_tokens = np.zeros(data.num_neurons, np.int64), 0
    for start in starts:
        bits = data.fired[start : min(start + BLOCK, data.num_train)]
        fires = np.unpackbits(bits, axis=1, count=data.num_neurons, bitorder="little")
        counts += fires.sum(axis=0, dtype=np.int64)
        num_tokens += len(bits)
    return (counts / num_tokens).astype(np.float32)


def _recipe(data: LayerData, goal: Goal, limit: int, seed: int) -> str:
    """Text of what decides a fit; of the data a sample."""
    digest = hashlib.sha256(data.weights.tobytes())
    for part in (slice(0, BLOCK), slice(data.num_tokens - BLOCK, None)):
        digest.update(np.ascontiguousarray(data.inputs[part]).tobytes())
        digest.update(np.ascontiguousarray(data.fired[part]).tobytes())
    shape = (data.number, *data.inputs.shape, data.num_neurons, data.num_train, data.scale)
    return f"{shape} {goal} limit {limit} seed {seed} data {digest.hexdigest()}"
