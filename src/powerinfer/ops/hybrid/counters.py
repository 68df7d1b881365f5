"""Counts of the work of feed-forward blocks on two devices, added up per step.

The CPU counts its own part, the GPU its part in device memory. Constants, such as the number of
neurons or the bytes of predictors, are noted when calls are made: a replayed run of layers makes
none, and repeats the notes of its recording. The device's counts are copied to the host after a
run's result, so that there is only one wait.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import numpy as np
import torch

from powerinfer.ops.cpu.exchange import NativeExchange
from powerinfer.ops.gpu.ffn import HotNeurons
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.gpu.selection import DevicePredictor
from powerinfer.ops.hybrid.decode import SplitFFN
from powerinfer.ops.protocol import FFNCounters

__all__ = ["HybridCounters"]


class HybridCounters:
    """Adds the device's counts to the counters of the CPU backend."""

    def __init__(
        self,
        counters: FFNCounters,
        exchange: NativeExchange,
        gpu: TorchGPU,
        num_layers: int,
        blocks: Sequence[SplitFFN],
    ) -> None:
        """Start with nothing.

        Args:
            counters: counters of the CPU backend.
            num_layers: layers of the model, and of shared experts.
            blocks: blocks with scores, also those that are added to the sequence later.
        """
        self._counters = counters
        self._exchange = exchange
        self._blocks = blocks
        # Four per row, so that all rows are aligned to 16 bytes: one compiled kernel for all.
        # The first three are `HotNeurons.counters`.
        zeros = np.zeros((num_layers, 4), np.int64)
        self._on_device = gpu.to_device(zeros)
        self._fetched = gpu.pinned(zeros.shape, torch.int64).zero_()
        self._known = zeros
        # Bytes of a neuron in each layer: its deciding row, and the others.
        self._row_bytes: dict[int, tuple[int, int]] = {}
        self._notes = FFNCounters()
        self._notes_of_run: dict[Hashable, FFNCounters] = {}

    def counted(self, number: int, hot: HotNeurons) -> HotNeurons:
        """Let the kernels of a layer count."""
        rows = [part.row_bytes for part in (hot.gate, hot.up, hot.down) if part is not None]
        self._row_bytes[number] = rows[0], sum(rows[1:])
        return replace(hot, counters=self._on_device[number, :3])

    def begin_run(self, run: Hashable) -> None:
        """Start a run of layers, whose key differs from those of runs that make other calls.

        If a step starts a run several times, the last time counts.
        """
        self._notes = self._notes_of_run[run] = FFNCounters()

    def end_run(self, run: Hashable, *, may_be_replayed: bool) -> None:
        """End a run: its calls were made, or a record of them was replayed.

        With `may_be_replayed`, later runs may happen without calls.
        """
        notes = self._notes_of_run[run]
        self._counters.add(notes)
        if not may_be_replayed:
            del self._notes_of_run[run]

    def note_call(
        self, block: SplitFFN, num_tokens: int, *, is_chosen: bool, num_uncounted: int
    ) -> None:
        """Note the constants of a call.

        Args:
            num_tokens: tokens of the call.
            is_chosen: a mask of a router, a predictor or lists selects neurons, and the device
                counts those.
            num_uncounted: neurons whose part in `total` the CPU's half does not count.
        """
        notes = self._notes
        notes.total += num_tokens * num_uncounted
        if block.router is not None:
            notes.bytes_read += block.router.linear.matrix.nbytes
        if is_chosen and block.predictor is not None:
            num_bytes = _predictor_bytes(block.predictor)
            if block.router is not None:
                # An upper bound: rows of experts that no token uses are skipped.
                used = num_tokens * block.router.num_used
                num_bytes = num_bytes * min(used, block.router.num_experts)
                num_bytes //= block.router.num_experts
            notes.predictor_bytes += num_bytes
            notes.bytes_read += num_bytes
        elif not is_chosen and not block.hot.is_skipping:
            num_here = num_uncounted or block.num_hot
            notes.active += num_tokens * num_here
            notes.predicted += num_tokens * num_here
            notes.bytes_read += num_here * sum(self._row_bytes[block.number])

    def fetch(self) -> None:
        """Queue a copy of the device's counts for `end_step`."""
        self._fetched.copy_(self._on_device, non_blocking=True)

    def end_step(self) -> None:
        """Add the device's counts, after it has finished."""
        counted = np.array(self._fetched.numpy())
        news, self._known = counted - self._known, counted
        for number, (deciding, others) in self._row_bytes.items():
            active, predicted, read, _ = news[number].tolist()
            self._counters.active += active
            self._counters.predicted += predicted
            self._counters.bytes_read += read * deciding + active * others

    def save(self) -> Callable[[], None]:
        """Return a function that undoes all counting and scoring from now on."""
        self._exchange.collect(self._counters)
        kept = [self._on_device, *(block.scores for block in self._blocks)]
        saved = [(now, now.clone()) for now in kept if now is not None]

        def restore() -> None:
            self._exchange.collect(FFNCounters())
            for now, before in saved:
                now.copy_(before)

        return restore


def _predictor_bytes(predictor: DevicePredictor) -> int:
    matrices = [stage.matrix for stage in predictor.stages]
    matrices += [] if predictor.fc1 is None else [predictor.fc1]
    return sum(matrix.nbytes for matrix in matrices)
