"""Moving neurons between the devices while a text is written: what fires lately comes to the GPU.

The GPU keeps a running score of each neuron, S <- d S + (1 - d) A with A = 1 in steps in which it
was active. Every `interval` steps the scores are fetched, without waiting for them, and `interval`
steps later neurons are chosen by them: cold ones that fired repeatedly, each for a hot one that
fires clearly less. Choosing, and sending their rows into free slots, goes on beside the steps under
way; when the rows are there, the tables change between two steps, and the slots of those who left
become free. Score and margin follow Kairox (OSDI 2026).
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from statistics import fmean, median
from time import perf_counter

import numpy as np
from torch import Tensor

from powerinfer.errors import PowerInferError
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.gpu.uploads import Mark, Upload, Uploader
from powerinfer.ops.hybrid.decode import SplitFFN
from powerinfer.ops.hybrid.slots import SlotTable
from powerinfer.values import FloatArray, IntArray

__all__ = ["OnlineMode", "OnlinePlacement", "OnlineSettings", "choose_moves"]

_log = logging.getLogger(__name__)

# Steps with moves must take less than this share of those without: the rest may be noise.
_WORTH = 0.97


class OnlineMode(StrEnum):
    """Whether neurons move.

    TRIAL: steps are timed without moves, and again when neurons have moved for a while; they go on
    only if that pays.
    """

    ON = "on"
    OFF = "off"
    TRIAL = "trial"


@dataclass(frozen=True, slots=True)
class OnlineSettings:
    """How much moves.

    Attributes:
        mode: whether at all.
        interval: steps between two rounds.
        max_moves: neurons of a layer that move in a round; as many slots are kept free.
        decay: of the scores, per step.
        margin: by how much a cold neuron's score must exceed the score of the hot one that it
            replaces, and what a single activation brings.
        trial_steps: that a trial times without moves, and with; some intervals each.
        settle_steps: with moves before the second time; moving a few neurons at once, it takes a
            while until most that shall have come.
    """

    mode: OnlineMode = OnlineMode.TRIAL
    interval: int = 32
    max_moves: int = 32
    decay: float = 0.95
    margin: float = 0.05
    trial_steps: int = 96
    settle_steps: int = 384


@dataclass(frozen=True, slots=True)
class Moves:
    """Of one layer in one round: i32[n] each."""

    evicted: IntArray
    loaded: IntArray
    slots: IntArray


def choose_moves(table: SlotTable, scores: FloatArray, settings: OnlineSettings) -> Moves:
    """Pair the most active cold neurons with the least active hot ones.

    Args:
        table: tells which are which.
        scores: f32[num_neurons], running.
        settings: how many and how clearly.
    """
    hot, cold, free = table.hot, table.cold, table.free
    most = min(len(free), len(hot), len(cold), settings.max_moves)
    leaving = hot[np.argsort(scores[hot], kind="stable")[:most]]
    coming = cold[np.argsort(-scores[cold], kind="stable")[:most]]
    # One activation after long silence gives 1 - decay: not yet a reason to move.
    is_known = scores[coming] > 1.0 - settings.decay + settings.margin
    is_better = scores[coming] > scores[leaving] + settings.margin
    count = int((is_known & is_better).sum())
    return Moves(leaving[:count], coming[:count], free[:count])


@dataclass(slots=True)
class _Round:
    """Moves under way; which ones is known when the upload is done."""

    moves: list[tuple[SplitFFN, Moves]]
    upload: Upload


class OnlinePlacement:
    """Watches decode steps and moves neurons between them.

    Attributes:
        num_moved: neurons brought to the GPU so far.
        is_moving: whether moves go on.
    """

    def __init__(
        self,
        blocks: Sequence[SplitFFN],
        load: Callable[[SplitFFN, IntArray, IntArray], None],
        gpu: TorchGPU,
        uploader: Uploader,
        settings: OnlineSettings,
    ) -> None:
        """Take the blocks whose neurons may move.

        Args:
            blocks: with scores and free slots.
            load: ``load(block, neurons, slots)`` writes rows into slots; runs beside the steps.
            gpu: the device.
            uploader: does work beside the steps.
            settings: how much moves.
        """
        self.num_moved = 0
        self.is_moving = settings.mode is not OnlineMode.OFF and bool(blocks)
        self._blocks = blocks
        self._load = load
        self._gpu = gpu
        self._uploader = uploader
        self._settings = settings
        self._trial = _Trial(settings) if settings.mode is OnlineMode.TRIAL else None
        self._num_steps = 0
        self._fetched: list[FloatArray] = []
        self._fetched_by: Mark | None = None
        self._round: _Round | None = None
        self._flipped: Mark | None = None
        self._own_s = 0.0

    def after_step(self, seconds: float) -> None:
        """Between two decode steps: flip what has arrived, begin what is due.

        Args:
            seconds: that the step took.
        """
        if not self.is_moving:
            return
        started = perf_counter()
        # What was done here after the step before delayed this one.
        if self._trial is not None and self._trial.ends_moves(seconds + self._own_s):
            self.is_moving = False
            self._finish_round(must_wait=True)
            return
        self._move()
        self._own_s = perf_counter() - started

    def _move(self) -> None:
        self._finish_round(must_wait=False)
        self._num_steps += 1
        is_due = self._num_steps % self._settings.interval == 0
        if is_due and (self._trial is None or self._trial.may_move) and self._round is None:
            self._begin_round()

    def _finish_round(self, *, must_wait: bool) -> None:
        current = self._round
        if current is None:
            return
        try:
            if not (must_wait or current.upload.is_done()):
                return
            current.upload.join()
        except (PowerInferError, RuntimeError) as error:
            # Slots that nothing names may hold anything: only moving ends.
            _log.warning("neurons stay where they are from now on: %s", error)
            self.is_moving, self._round = False, None
            return
        for block, moves in current.moves:
            block.slots.replace(moves.evicted, moves.loaded, moves.slots)
            block.hot.neuron_of_slot.copy_(self._gpu.to_device(block.slots.neuron_of_slot))
            block.hot.slot_of_neuron.copy_(self._gpu.to_device(block.slots.slot_of_neuron))
            self.num_moved += len(moves.loaded)
        self._flipped = self._uploader.mark()
        self._round = None

    def _begin_round(self) -> None:
        """Have neurons chosen by the scores fetched last time; fetch them for the next."""
        if self._fetched_by is not None and self._fetched_by.is_reached():
            moves: list[tuple[SplitFFN, Moves]] = []
            work = partial(self._choose_and_load, self._fetched, moves)
            self._round = _Round(moves, self._uploader.submit(work, self._flipped))
        self._fetched = [
            self._fetch(block.scores) for block in self._blocks if block.scores is not None
        ]
        self._fetched_by = self._uploader.mark()

    def _fetch(self, scores: Tensor) -> FloatArray:
        """Begin to copy scores to the host; the array is good when a later mark is reached."""
        host = self._gpu.pinned(tuple(scores.shape), scores.dtype)
        host.copy_(scores, non_blocking=True)
        array: FloatArray = host.numpy()
        return array

    def _choose_and_load(
        self, fetched: Sequence[FloatArray], moves: list[tuple[SplitFFN, Moves]]
    ) -> None:
        """Beside the steps; the tables that are read here change only when it is done."""
        for block, scores in zip(self._blocks, fetched, strict=True):
            chosen = choose_moves(block.slots, scores, self._settings)
            if len(chosen.loaded):
                self._load(block, chosen.loaded, chosen.slots)
                moves.append((block, chosen))


class _Trial:
    """Times steps without moves, then with; see `OnlineMode`.

    Steps are added up by intervals, so that what a round of moves costs counts, and the median of
    the intervals is taken, so that a pause of the machine does not.
    """

    def __init__(self, settings: OnlineSettings) -> None:
        self._interval = settings.interval
        self._num_timed = max(1, settings.trial_steps // settings.interval)
        self._num_settling = settings.settle_steps // settings.interval
        self._steps: list[float] = []
        self._means: list[float] = []

    @property
    def may_move(self) -> bool:
        """Whether the part without moves is over."""
        return len(self._means) >= self._num_timed

    def ends_moves(self, seconds: float) -> bool:
        """Count a step; True when moves have turned out not to pay."""
        if len(self._means) == 2 * self._num_timed + self._num_settling:
            return False
        self._steps.append(seconds)
        if len(self._steps) < self._interval:
            return False
        self._means.append(fmean(self._steps))
        self._steps.clear()
        if len(self._means) < 2 * self._num_timed + self._num_settling:
            return False
        before = median(self._means[: self._num_timed])
        after = median(self._means[-self._num_timed :])
        pays = after < _WORTH * before
        _log.info(
            "moving neurons: %.2f ms a step, %.2f ms without; %s",
            after * 1e3,
            before * 1e3,
            "going on" if pays else "stopped",
        )
        return not pays
