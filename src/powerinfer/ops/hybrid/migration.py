"""Slots of a layer's neurons on the GPU, and moves of neurons that fire often into them.

The GPU keeps a running score of each neuron, S <- d S + (1 - d) A with A = 1 in steps in which it
was active. Every `interval` steps the scores are fetched without waiting, and `interval` steps
later neurons are chosen by them: cold ones that fired repeatedly, each replacing a hot one that
fires clearly less. Choosing neurons and sending their rows into free slots happens in the
background; once the rows have arrived, the tables change between two steps, and the slots of
evicted neurons become free. Score and margin follow Kairox (OSDI 2026).
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
from powerinfer.ops.gpu.ffn import HotNeurons
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.gpu.uploads import Mark, Upload, Uploader
from powerinfer.values import FloatArray, IntArray

__all__ = [
    "MovableNeurons",
    "OnlineMode",
    "OnlinePlacement",
    "OnlineSettings",
    "SlotTable",
    "choose_moves",
]

_log = logging.getLogger(__name__)

# Steps with moves must take less than this share of the time of those without, beyond noise.
_WORTH = 0.97


class SlotTable:
    """Slots of one layer, some of them free: the host's copy of the tables.

    Attributes:
        neuron_of_slot: i32[slots], -1 for free ones.
        slot_of_neuron: i32[neurons], -1 for neurons that are not on the device.
    """

    def __init__(self, hot: IntArray, num_neurons: int, num_slots: int) -> None:
        """Put neurons, ids i32[k], into the first slots, in their order."""
        self.neuron_of_slot = np.full(num_slots, -1, np.int32)
        self.neuron_of_slot[: len(hot)] = hot
        self.slot_of_neuron = np.full(num_neurons, -1, np.int32)
        self.slot_of_neuron[hot] = np.arange(len(hot), dtype=np.int32)

    @property
    def cold(self) -> IntArray:
        """Ascending ids of the neurons that are not on the device."""
        ids: IntArray = np.flatnonzero(self.slot_of_neuron < 0).astype(np.int32)
        return ids

    @property
    def hot(self) -> IntArray:
        """Ascending ids of the neurons on the device."""
        ids: IntArray = np.flatnonzero(self.slot_of_neuron >= 0).astype(np.int32)
        return ids

    @property
    def free(self) -> IntArray:
        """Ascending numbers of the slots without a neuron."""
        slots: IntArray = np.flatnonzero(self.neuron_of_slot < 0).astype(np.int32)
        return slots

    @property
    def is_full(self) -> bool:
        """True if every neuron of the layer is on the device."""
        return bool((self.slot_of_neuron >= 0).all())

    def replace(self, moves: "Moves") -> None:
        """Replace neurons by others whose weights have arrived in free slots."""
        self.neuron_of_slot[self.slot_of_neuron[moves.evicted]] = -1
        self.slot_of_neuron[moves.evicted] = -1
        self.neuron_of_slot[moves.slots] = moves.loaded
        self.slot_of_neuron[moves.loaded] = moves.slots


class OnlineMode(StrEnum):
    """Mode of moving neurons.

    TRIAL: steps are timed without moves, and again after neurons have moved for a while; moves
    continue only if they pay off.
    """

    ON = "on"
    OFF = "off"
    TRIAL = "trial"


@dataclass(frozen=True, slots=True)
class OnlineSettings:
    """Settings of moving neurons.

    Attributes:
        interval: steps between two rounds.
        max_moves: most neurons of a layer that move in a round; as many slots are kept free.
        decay: decay of the scores per step.
        margin: least difference of the scores of a cold neuron and the hot one that it replaces,
            and least score above that of a single activation.
        trial_steps: steps that a trial times without moves, and with; some intervals each.
        settle_steps: steps with moves before the second timing, since only a few neurons move at
            once.
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
    """Neurons of one layer that are replaced, and by which in which free slots: i32[n] each."""

    evicted: IntArray
    loaded: IntArray
    slots: IntArray


def choose_moves(table: SlotTable, scores: FloatArray, settings: OnlineSettings) -> Moves:
    """Pair the most active cold neurons with the least active hot ones, by f32[num_neurons]."""
    hot, cold, free = table.hot, table.cold, table.free
    most = min(len(free), len(hot), len(cold), settings.max_moves)
    leaving = hot[np.argsort(scores[hot], kind="stable")[:most]]
    coming = cold[np.argsort(-scores[cold], kind="stable")[:most]]
    # One activation after a long pause gives 1 - decay, which is no reason to move.
    is_known = scores[coming] > 1.0 - settings.decay + settings.margin
    is_better = scores[coming] > scores[leaving] + settings.margin
    count = int((is_known & is_better).sum())
    return Moves(leaving[:count], coming[:count], free[:count])


@dataclass(frozen=True, slots=True, eq=False)
class MovableNeurons:
    """Neurons of one layer that may move.

    Attributes:
        table: changed between two steps.
        hot: the device's slots and its copies of the table.
        scores: f32[num_neurons] on the device, how often each fired recently.
        load: ``load(neurons, slots)`` writes rows into free slots; runs in the background.
    """

    table: SlotTable
    hot: HotNeurons
    scores: Tensor
    load: Callable[[IntArray, IntArray], None]


class OnlinePlacement:
    """Watches decode steps and moves neurons between them.

    Attributes:
        num_moved: neurons moved to the GPU so far.
        is_moving: moves continue.
    """

    def __init__(
        self,
        layers: Sequence[MovableNeurons],
        gpu: TorchGPU,
        uploader: Uploader,
        settings: OnlineSettings,
    ) -> None:
        """Take layers with free slots; `uploader` does the background work."""
        self.num_moved = 0
        self.is_moving = True
        self._layers = layers
        self._gpu = gpu
        self._uploader = uploader
        self._settings = settings
        self._trial = _Trial(settings) if settings.mode is OnlineMode.TRIAL else None
        self._num_steps = 0
        # Scores fetched last, and those that a round reads. Page-locked memory is kept as long as
        # this object: freed by the thread of uploads, torch would mark it on the streams that used
        # it, on which a step may be being recorded.
        self._fetched, self._read = (
            [gpu.pinned(tuple(layer.scores.shape), layer.scores.dtype) for layer in layers]
            for _ in range(2)
        )
        self._fetched_by: Mark | None = None
        # Moves in progress, which are known when the upload is done.
        self._round: tuple[Upload, list[tuple[MovableNeurons, Moves]]] | None = None
        self._flipped: Mark | None = None
        self._own_s = 0.0

    def after_step(self, seconds: float) -> None:
        """Apply moves that have arrived and start a round if one is due, after a decode step."""
        if not self.is_moving:
            return
        started = perf_counter()
        # The work here after the previous step delayed this one.
        if self._trial is not None and self._trial.ends_moves(seconds + self._own_s):
            self._finish_round(must_wait=True)
            self._end()
            return
        self._finish_round(must_wait=False)
        self._num_steps += 1
        is_due = self._num_steps % self._settings.interval == 0
        may_begin = self.is_moving and (self._trial is None or self._trial.may_move)
        if is_due and may_begin and self._round is None:
            self._begin_round()
        self._own_s = perf_counter() - started

    def _finish_round(self, *, must_wait: bool) -> None:
        if self._round is None:
            return
        upload, all_moves = self._round
        try:
            if not (must_wait or upload.is_done()):
                return
            upload.join()
        except (PowerInferError, RuntimeError) as error:
            # Slots that no table names may hold anything: only moving ends.
            _log.warning("neurons stay where they are from now on: %s", str(error))
            self._round = None
            self._end()
            return
        for layer, moves in all_moves:
            layer.table.replace(moves)
            layer.hot.neuron_of_slot.copy_(self._gpu.to_device(layer.table.neuron_of_slot))
            layer.hot.slot_of_neuron.copy_(self._gpu.to_device(layer.table.slot_of_neuron))
            self.num_moved += len(moves.loaded)
        self._flipped = self._uploader.mark()
        self._round = None

    def _end(self) -> None:
        self.is_moving = False
        # The scores are not needed any more.
        self._layers = ()

    def _begin_round(self) -> None:
        """Choose neurons by the scores fetched last time, and fetch them for the next time."""
        if self._fetched_by is not None and self._fetched_by.is_reached():
            moves: list[tuple[MovableNeurons, Moves]] = []
            work = partial(self._choose_and_load, self._fetched, moves)
            self._round = self._uploader.submit(work, self._flipped), moves
            self._fetched, self._read = self._read, self._fetched
        for layer, host in zip(self._layers, self._fetched, strict=True):
            self._fetch(layer.scores, host)
        self._fetched_by = self._uploader.mark()

    def _fetch(self, scores: Tensor, host: Tensor) -> None:
        """Start copying scores to the host, where they are valid once a later mark is reached."""
        host.copy_(scores, non_blocking=True)

    def _choose_and_load(
        self, fetched: Sequence[Tensor], moves: list[tuple[MovableNeurons, Moves]]
    ) -> None:
        """Run in the background; the tables read here change only when this is done."""
        for layer, scores in zip(self._layers, fetched, strict=True):
            chosen = choose_moves(layer.table, scores.numpy(), self._settings)
            if len(chosen.loaded):
                layer.load(chosen.loaded, chosen.slots)
                moves.append((layer, chosen))


class _Trial:
    """Times steps without moves, then with; see `OnlineMode`.

    The median of whole intervals includes the cost of a round of moves, but not a pause of the
    machine.
    """

    def __init__(self, settings: OnlineSettings) -> None:
        self._interval = settings.interval
        self._num_timed = max(1, settings.trial_steps // settings.interval)
        self._num_settling = settings.settle_steps // settings.interval
        self._steps: list[float] = []
        self._means: list[float] = []

    @property
    def may_move(self) -> bool:
        """True once the part without moves is over."""
        return len(self._means) >= self._num_timed

    def ends_moves(self, seconds: float) -> bool:
        """Count a step; True if moves have turned out not to pay off."""
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
