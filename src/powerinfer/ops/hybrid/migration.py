"""Moves of neurons that fire often to the GPU.

The GPU keeps a running score of each neuron, S <- d S + (1 - d) A with A = 1 in steps in which it
was active. Every `interval` steps the scores are fetched without waiting, and `interval` steps
later neurons are chosen by them: cold ones that fired repeatedly, each replacing a hot one that
fires clearly less. Choosing neurons and sending their rows into free slots happens in the
background; once the rows have arrived, the tables change between two steps, and the slots of
evicted neurons become free. Score and margin follow Kairox (OSDI 2026).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from statistics import fmean, median
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from powerinfer.errors import PowerInferError, UnsupportedError
from powerinfer.ops.gpu.kernels import MAX_TOKENS
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.gpu.uploads import Mark, Upload, Uploader
from powerinfer.ops.hybrid.decode import SplitFFN
from powerinfer.ops.hybrid.handles import Moves, SlotTable
from powerinfer.ops.hybrid.upload import Uploads
from powerinfer.values import FloatArray

__all__ = [
    "HybridSettings",
    "OnlineMode",
    "OnlinePlacement",
    "OnlineSettings",
    "choose_moves",
]

_log = logging.getLogger(__name__)

# Steps with moves must take less than this share of the time of those without, beyond noise.
_WORTH = 0.97


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
class HybridSettings:
    """Settings of two devices that work together.

    Attributes:
        max_tokens: most tokens of a decode step, at most 8.
        max_texts: most texts whose next tokens are computed in several such steps. The GPU reads
            its weights for each, so more of them are cheaper in the way of a prompt.
        prefill_crossover: least number of prompt tokens for which cold weights are sent to the GPU
            instead of computed by the CPU. `offload.place` derives it from measured speeds.
        stream_crossover: the same for all weights of a layer on the CPU.
        handoff: one of `build.HANDOFFS`.
        online: settings of moving neurons.
        chunk_bytes: size of each of two buffers for cold weights.
    """

    max_tokens: int = MAX_TOKENS
    max_texts: int = 32
    prefill_crossover: int = 32
    stream_crossover: int = 64
    handoff: str = "auto"
    online: OnlineSettings = field(default_factory=OnlineSettings)
    chunk_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        if not 1 <= self.max_tokens <= MAX_TOKENS:
            raise UnsupportedError(
                f"decode steps of {self.max_tokens} tokens; kernels serve 1 to {MAX_TOKENS}"
            )


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


class OnlinePlacement:
    """Watches decode steps and moves neurons between them.

    Attributes:
        num_moved: neurons moved to the GPU so far.
        is_moving: moves continue.
    """

    def __init__(
        self,
        blocks: Sequence[SplitFFN],
        uploads: Uploads,
        gpu: TorchGPU,
        uploader: Uploader,
        settings: OnlineSettings,
    ) -> None:
        """Take the blocks with scores and free slots; `uploader` does the background work."""
        self.num_moved = 0
        self.is_moving = True
        self._blocks = blocks
        self._uploads = uploads
        self._gpu = gpu
        self._uploader = uploader
        self._settings = settings
        self._trial = _Trial(settings) if settings.mode is OnlineMode.TRIAL else None
        self._num_steps = 0
        # Scores fetched last, and those that a round reads. Page-locked memory is kept as long as
        # this object: freed by the thread of uploads, torch would mark it on the streams that used
        # it, on which a step may be being recorded.
        self._fetched, self._read = (
            [gpu.pinned((block.num_neurons,), torch.float32) for block in blocks] for _ in range(2)
        )
        self._fetched_by: Mark | None = None
        # Moves in progress, which are known when the upload is done.
        self._round: tuple[Upload, list[tuple[SplitFFN, Moves]]] | None = None
        self._flipped: Mark | None = None
        self._own_s = 0.0

    def after_step(self, seconds: float) -> bool:
        """Apply moves that have arrived and start a round if one is due, after a decode step.

        Returns True if moving ends here: the blocks lose their scores, to which records still add.
        """
        if not self.is_moving:
            return False
        started = perf_counter()
        # The work here after the previous step delayed this one.
        if self._trial is not None and self._trial.ends_moves(seconds + self._own_s):
            self._finish_round(must_wait=True)
            self._end()
            return True
        self._finish_round(must_wait=False)
        self._num_steps += 1
        is_due = self._num_steps % self._settings.interval == 0
        may_begin = self.is_moving and (self._trial is None or self._trial.may_move)
        if is_due and may_begin and self._round is None:
            self._begin_round()
        self._own_s = perf_counter() - started
        return not self.is_moving

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
        for block, moves in all_moves:
            block.slots.replace(moves)
            block.hot.neuron_of_slot.copy_(self._gpu.to_device(block.slots.neuron_of_slot))
            block.hot.slot_of_neuron.copy_(self._gpu.to_device(block.slots.slot_of_neuron))
            self.num_moved += len(moves.loaded)
        self._flipped = self._uploader.mark()
        self._round = None

    def _end(self) -> None:
        self.is_moving = False
        for block in self._blocks:
            block.scores = None
        self._blocks = ()

    def _begin_round(self) -> None:
        """Choose neurons by the scores fetched last time, and fetch them for the next time."""
        if self._fetched_by is not None and self._fetched_by.is_reached():
            moves: list[tuple[SplitFFN, Moves]] = []
            work = partial(self._choose_and_load, self._fetched, moves)
            self._round = self._uploader.submit(work, self._flipped), moves
            self._fetched, self._read = self._read, self._fetched
        for block, host in zip(self._blocks, self._fetched, strict=True):
            if block.scores is not None:
                self._fetch(block.scores, host)
        self._fetched_by = self._uploader.mark()

    def _fetch(self, scores: Tensor, host: Tensor) -> None:
        """Start copying scores to the host, where they are valid once a later mark is reached."""
        host.copy_(scores, non_blocking=True)

    def _choose_and_load(
        self, fetched: Sequence[Tensor], moves: list[tuple[SplitFFN, Moves]]
    ) -> None:
        """Run in the background; the tables read here change only when this is done."""
        for block, scores in zip(self._blocks, fetched, strict=True):
            chosen = choose_moves(block.slots, scores.numpy(), self._settings)
            if len(chosen.loaded):
                self._uploads.neurons(block.cpu, block.hot, chosen.loaded, chosen.slots)
                moves.append((block, chosen))


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
