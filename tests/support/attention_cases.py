"""Attention over random caches, done alike on every backend of host arrays."""

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeAlias

import numpy as np
import numpy.typing as npt

from native_cases import given_rows, make_batch, numbers
from powerinfer.ops.protocol import HeadNorms, KVLayerT, KVType, MatrixT, Ops, RopeTable, VectorT
from powerinfer.values import Batch, FloatArray

__all__ = ["CASES", "PLAIN", "Case", "Options", "Scene", "attend", "rope_table"]

# Heads, KV heads, head_dim, block size, window, sequence lengths, and the tokens of each that ask.
Case: TypeAlias = tuple[int, int, int, int, int | None, tuple[int, ...], int]
CASES: list[Case] = [
    (4, 2, 16, 16, None, (1, 37, 700), 1),
    (8, 1, 32, 64, None, (300, 5), 9),
    (6, 6, 13, 7, None, (90,), 90),
    (40, 1, 8, 16, None, (33,), 20),
    (4, 4, 64, 16, 5, (300,), 40),
    (2, 1, 32, 16, 258, (600,), 3),
]


@dataclass(frozen=True)
class Options:
    """What rotation and attention may do besides."""

    rope: RopeTable | None = None
    has_norms: bool = False
    has_sinks: bool = False
    soft_cap: float | None = None


PLAIN = Options()


def rope_table(head_dim: int, *, is_interleaved: bool) -> RopeTable:
    """Angles for 1024 positions; odd head sizes leave the last dimension alone."""
    half = head_dim // 2
    angles = np.arange(1024)[:, None] * 10000.0 ** (-np.arange(half) / max(1, half))
    return RopeTable(
        np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), is_interleaved
    )


class Scene(Generic[MatrixT, VectorT, KVLayerT]):
    """A cache in which all positions of all sequences of a case are stored.

    Attributes:
        last: the last tokens of each sequence, which ask.
        q: f32[num_tokens, num_heads * head_dim], of these, rotated.
    """

    def __init__(
        self,
        ops: Ops[FloatArray, MatrixT, VectorT, KVLayerT, Any],
        case: Case,
        kv_type: KVType,
        options: Options = PLAIN,
        *,
        is_prompt: bool,
    ) -> None:
        """Store all; as prompt, tokens of a sequence share tiles."""
        num_heads, num_kv_heads, head_dim, block_size, self.window, lengths, num_new = case
        self.ops, self.options, self.scale = ops, options, head_dim**-0.5
        whole, last = make_batch(lengths, num_new, block_size)
        if is_prompt:
            whole, last = (replace(b, is_prompt=given_rows(b.num_tokens)) for b in (whole, last))
        sizes = whole.block_tables.size, block_size, num_kv_heads, head_dim
        (self.cache,) = ops.new_kv_layers(1, *sizes, kv_type)
        k = numbers((whole.num_tokens, num_kv_heads * head_dim), 1)
        v = numbers((whole.num_tokens, num_kv_heads * head_dim), 2)
        q = numbers((whole.num_tokens, num_heads * head_dim), 3)
        # One of them weighs nothing beside the others, one leaves little to the positions.
        sinks = np.linspace(-20, 8, num_heads).astype(np.float32)
        self.sinks = ops.constant(sinks) if options.has_sinks else None
        ops.rope_and_store(q, k, v, self.cache, whole, options.rope, self._norms(head_dim))
        self.last, self.q = last, np.ascontiguousarray(q[_rows(whole, last)])

    def _norms(self, head_dim: int) -> HeadNorms[VectorT] | None:
        if not self.options.has_norms:
            return None
        q_norm, k_norm = (self.ops.constant(numbers((head_dim,), seed)) for seed in (4, 5))
        return HeadNorms(q_norm, k_norm, 1e-3)

    def run(self, batch: Batch, q: FloatArray) -> FloatArray:
        """Attend with some tokens."""
        return self.ops.attention(
            q,
            self.cache,
            batch,
            self.scale,
            self.window,
            sinks=self.sinks,
            soft_cap=self.options.soft_cap,
        )

    def run_rows(self, rows: npt.ArrayLike, marks: npt.ArrayLike) -> FloatArray:
        """Attend with some of the last tokens, each prompt or not."""
        picked = np.asarray(rows)
        batch = replace(
            self.last,
            token_ids=self.last.token_ids[picked],
            positions=self.last.positions[picked],
            sequences=self.last.sequences[picked],
            is_prompt=np.asarray(marks, bool),
        )
        return self.run(batch, np.ascontiguousarray(self.q[picked]))


def attend(
    ops: Ops[FloatArray, MatrixT, VectorT, KVLayerT, Any],
    case: Case,
    kv_type: KVType,
    options: Options = PLAIN,
    *,
    is_prompt: bool,
) -> FloatArray:
    """Store all positions of all sequences, then attend with the last tokens of each."""
    scene = Scene(ops, case, kv_type, options, is_prompt=is_prompt)
    return scene.run(scene.last, scene.q)


def _rows(whole: Batch, last: Batch) -> list[int]:
    places = {
        (int(s), int(p)): i
        for i, (s, p) in enumerate(zip(whole.sequences, whole.positions, strict=True))
    }
    return [places[int(s), int(p)] for s, p in zip(last.sequences, last.positions, strict=True)]
