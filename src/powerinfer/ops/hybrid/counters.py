"""What feed-forward blocks on two devices really did, added up in one place per step.

The CPU counts its part itself, the GPU in its own memory. What neither counts because it never
varies (neurons there are, the bytes of predictors) is noted when the calls are made: a replayed
run of layers makes none, and repeats the notes of the calls it was recorded from. What the device
counted comes to the host behind a run's result, so that nobody waits twice.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from powerinfer.ops.gpu.ffn import DevicePredictor
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.hybrid.decode import SplitFFN
from powerinfer.ops.protocol import FFNCounters

__all__ = ["HybridCounters"]


@dataclass(frozen=True, slots=True)
class _RowBytes:
    """Of one neuron on the device: the row that decides whether it fires, and the others."""

    deciding: int
    rest: int


class HybridCounters:
    """Adds what happened on the device to the counters of the CPU backend."""

    def __init__(self, counters: FFNCounters, gpu: TorchGPU, num_layers: int) -> None:
        """Start with nothing.

        Args:
            counters: of the CPU backend, added to.
            gpu: holds three numbers of each layer, see `HotNeurons.counters`.
            num_layers: of the model.
        """
        self._counters = counters
        # Four to a row, so that every row begins where 16 bytes do: one compiled kernel for all.
        zeros = np.zeros((num_layers, 4), np.int64)
        self._on_device = gpu.to_device(zeros)
        self._fetched = gpu.pinned(zeros.shape, torch.int64).zero_()
        self._known = zeros
        self._row_bytes: dict[int, _RowBytes] = {}
        self._notes = FFNCounters()
        self._notes_of_run: dict[Hashable, FFNCounters] = {}

    def of_layer(self, number: int) -> Tensor:
        """i64[3] on the device, which the kernels of a layer add to."""
        return self._on_device[number, :3]

    def begin_run(self, run: Hashable) -> None:
        """The calls of a run of layers follow. Of several times in one step the last one counts.

        Args:
            run: what tells it from runs that make other calls.
        """
        self._notes = self._notes_of_run[run] = FFNCounters()

    def end_run(self, run: Hashable, *, may_be_replayed: bool) -> None:
        """A run is over: its calls were made, or a record of them was replayed.

        Args:
            run: as for `begin_run`.
            may_be_replayed: later, without calls.
        """
        _add(self._counters, self._notes_of_run[run])
        if not may_be_replayed:
            del self._notes_of_run[run]

    def note_call(
        self, block: SplitFFN, num_tokens: int, *, is_chosen: bool, num_uncounted: int
    ) -> None:
        """Note what is known of a call beforehand.

        Args:
            block: that was called.
            num_tokens: for which.
            is_chosen: a mask of a router, a predictor or lists says which neurons run; the device
                counts those.
            num_uncounted: neurons whose part in `total` the CPU's half does not count.
        """
        hot, notes = block.hot, self._notes
        rows = self._row_bytes.setdefault(block.number, _row_bytes(block))
        notes.total += num_tokens * num_uncounted
        if block.router is not None:
            notes.bytes_read += block.router.linear.matrix.nbytes
        if is_chosen and block.predictor is not None:
            num_bytes = _predictor_bytes(block.predictor)
            if block.router is not None:
                # Rows of experts that no token uses are skipped: no more than this are read.
                used = num_tokens * block.router.num_used
                num_bytes = num_bytes * min(used, block.router.num_experts)
                num_bytes //= block.router.num_experts
            notes.predictor_bytes += num_bytes
            notes.bytes_read += num_bytes
        elif not is_chosen and not hot.is_skipping:
            num_here = num_uncounted or block.num_hot
            notes.active += num_tokens * num_here
            notes.predicted += num_tokens * num_here
            notes.bytes_read += num_here * (rows.deciding + rows.rest)

    def fetch(self) -> None:
        """Queue a copy of what the device has counted; `end_step` takes what has arrived."""
        self._fetched.copy_(self._on_device, non_blocking=True)

    def end_step(self) -> None:
        """Add up what the device counted; it must have done what was queued."""
        counted = np.array(self._fetched.numpy())
        news, self._known = counted - self._known, counted
        for number, (active, predicted, read, _) in enumerate(news.tolist()):
            if not read and not active:
                continue
            rows = self._row_bytes[number]
            self._counters.active += active
            self._counters.predicted += predicted
            self._counters.bytes_read += read * rows.deciding + active * rows.rest

    def save(self) -> Callable[[], None]:
        """What sets the device's counts back to where they are now."""
        now = self._on_device.clone()

        def restore() -> None:
            self._on_device.copy_(now)

        return restore


def _row_bytes(block: SplitFFN) -> _RowBytes:
    hot = block.hot
    rows = [part.row_bytes for part in (hot.gate, hot.up, hot.down) if part is not None]
    return _RowBytes(rows[0], sum(rows[1:]))


def _predictor_bytes(predictor: DevicePredictor) -> int:
    matrices = [stage.matrix for stage in predictor.stages]
    matrices += [] if predictor.fc1 is None else [predictor.fc1]
    return sum(matrix.nbytes for matrix in matrices)


def _add(counters: FFNCounters, notes: FFNCounters) -> None:
    counters.active += notes.active
    counters.predicted += notes.predicted
    counters.total += notes.total
    counters.bytes_read += notes.bytes_read
    counters.predictor_bytes += notes.predictor_bytes
