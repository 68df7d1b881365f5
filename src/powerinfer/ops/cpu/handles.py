"""Handles and operands of the native CPU backend, and handles that it keeps between calls."""

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from powerinfer import _core
from powerinfer.ops.operands import FFN, FFNCounters, Linear, NeuronPredictor, RopeTable
from powerinfer.values import Batch

__all__ = [
    "CurrentBatch",
    "NativeFFN",
    "NativeKV",
    "NativeLinear",
    "NativeMatrix",
    "NativePredictor",
    "NativeState",
    "NativeVector",
    "RopeHandles",
    "add_stats",
    "new_batch",
]

# Objects of the C++ extension.
NativeMatrix: TypeAlias = _core.Matrix
NativeVector: TypeAlias = _core.Vector
NativeKV: TypeAlias = _core.KVLayer
NativeState: TypeAlias = _core.StateLayer

# Operands that hold them.
NativeLinear: TypeAlias = Linear[NativeMatrix, NativeVector]
NativePredictor: TypeAlias = NeuronPredictor[NativeMatrix, NativeVector]
NativeFFN: TypeAlias = FFN[NativeMatrix, NativeVector]


def new_batch(batch: Batch) -> _core.Batch:
    """Create a handle of a batch."""
    handle = _core.Batch(batch.positions, batch.sequences, batch.block_tables, batch.is_prompt)
    if batch.state_sources is not None and batch.state_targets is not None:
        handle.set_states(batch.state_sources, batch.state_targets)
    return handle


class CurrentBatch:
    """The batch that the layers of one step share, and its handle."""

    def __init__(self, batch: Batch | None = None, handle: _core.Batch | None = None) -> None:
        """Start with a batch, if it is known."""
        self._known = batch, handle  # replaced at once, since several threads may compute

    def of(self, batch: Batch) -> _core.Batch:
        """Return the handle of a batch, created at its first use."""
        known, handle = self._known
        if known is not batch or handle is None:
            handle = new_batch(batch)
            self._known = batch, handle
        return handle


@dataclass(slots=True)
class RopeHandles:
    """Handles of rotation tables by identity; keeps the tables, so identities stay unique."""

    handles: dict[int, tuple[RopeTable, _core.RopeTable]] = field(default_factory=dict)

    def handle(self, rope: RopeTable) -> _core.RopeTable:
        """Return the handle of a table, created at its first use."""
        known = self.handles.get(id(rope))
        if known is None:
            made = _core.RopeTable(
                np.ascontiguousarray(rope.cos, np.float32),
                np.ascontiguousarray(rope.sin, np.float32),
                rope.is_interleaved,
            )
            known = self.handles[id(rope)] = (rope, made)
        return known[1]


def add_stats(counters: FFNCounters, stats: _core.FFNStats) -> None:
    """Add the statistics of a native call to the counters."""
    counters.active += stats.active
    counters.predicted += stats.predicted
    counters.total += stats.total
    counters.bytes_read += stats.bytes_read + stats.predictor_bytes
    counters.predictor_bytes += stats.predictor_bytes
    counters.down_bytes += stats.down_bytes
    counters.router_bytes += stats.router_bytes
    counters.predictor_s += stats.predictor_s
    counters.down_s += stats.down_s
    counters.router_s += stats.router_s
