"""Handles and operands of the native CPU backend, and those it keeps from one call to the next."""

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from powerinfer import _core
from powerinfer.errors import ShapeError
from powerinfer.ops.operands import FFN, Linear, NeuronPredictor, NeuronShares, Router
from powerinfer.ops.protocol import RopeTable
from powerinfer.values import Batch

__all__ = [
    "CurrentBatch",
    "NativeFFN",
    "NativeKV",
    "NativeLinear",
    "NativeMatrix",
    "NativePredictor",
    "NativeVector",
    "PreparedNativeFFN",
    "PreparedNativePredictor",
    "RopeHandles",
    "decode_shares",
    "native_ffn",
    "new_batch",
]

# Objects of the C++ extension.
NativeMatrix: TypeAlias = _core.Matrix
NativeVector: TypeAlias = _core.Vector
NativeKV: TypeAlias = _core.KVLayer
PreparedNativeFFN: TypeAlias = _core.FFN
PreparedNativePredictor: TypeAlias = _core.NeuronPredictor

# Operands that hold them.
NativeLinear: TypeAlias = Linear[NativeMatrix, NativeVector]
NativePredictor: TypeAlias = NeuronPredictor[NativeMatrix, NativeVector, PreparedNativePredictor]
NativeFFN: TypeAlias = FFN[NativeMatrix, NativeVector, PreparedNativeFFN, PreparedNativePredictor]


@dataclass(slots=True)
class CurrentBatch:
    """The handles of the batch that the layers of one step share."""

    batch: Batch | None = None
    handle: _core.Batch | None = None


def native_ffn(
    ffn: FFN[NativeMatrix, NativeVector, object, PreparedNativePredictor],
) -> PreparedNativeFFN:
    """A handle of the weights of a block."""
    return _core.FFN(
        (None, None) if ffn.gate is None else (ffn.gate.matrix, ffn.gate.bias),
        (ffn.up.matrix, ffn.up.bias),
        (ffn.down.matrix, ffn.down.bias),
        ffn.activation.kind.value,
        ffn.activation.threshold,
        ffn.is_down_transposed,
        ffn.is_exact_sparse,
        None if ffn.router is None else _native_router(ffn.router),
    )


def _native_router(router: Router[NativeMatrix, NativeVector]) -> _core.Router:
    linear = router.linear
    if not 1 <= router.num_used <= router.num_experts or linear.matrix.rows != router.num_experts:
        raise ShapeError(
            f"a router of {linear.matrix.rows} rows cannot choose {router.num_used} of "
            f"{router.num_experts} experts"
        )
    return _core.Router(
        linear.matrix, linear.bias, router.rule.value, router.num_used, router.is_normalized
    )


def decode_shares(ffn: NativeFFN) -> NeuronShares | None:
    """Which share of a block's neurons its last decode rows needed; None before any."""
    rows, batches, active, united = ffn.native.last_decode
    size = ffn.up.matrix.rows
    return NeuronShares(active / (rows * size), united / (batches * size)) if rows else None


def new_batch(batch: Batch) -> _core.Batch:
    """A handle of the tokens of a step."""
    return _core.Batch(batch.positions, batch.sequences, batch.block_tables, batch.is_prompt)


@dataclass(slots=True)
class RopeHandles:
    """Handles of rotation tables by identity; keeps the tables, so identities stay unique."""

    handles: dict[int, tuple[RopeTable, _core.RopeTable]] = field(default_factory=dict)

    def handle(self, rope: RopeTable) -> _core.RopeTable:
        """The handle of a table, made at its first use."""
        known = self.handles.get(id(rope))
        if known is None:
            made = _core.RopeTable(
                np.ascontiguousarray(rope.cos, np.float32),
                np.ascontiguousarray(rope.sin, np.float32),
                rope.is_interleaved,
            )
            known = self.handles[id(rope)] = (rope, made)
        return known[1]
