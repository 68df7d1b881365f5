"""The output head of decode steps that computes only logits that may be chosen, without loss.

`ops/head_ops.py` says why nothing is lost. What is chosen here, from the inputs of the head on a
little text, changes no logit, only how many rows are computed: the columns copied in 8 bits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from powerinfer.errors import UnsupportedError
from powerinfer.gguf import Tensor
from powerinfer.models.scales import Scales
from powerinfer.ops.backend import Backend, Matrix, SomeHeadCopy, SomeLinear
from powerinfer.ops.protocol import HeadCopy, MatrixUse, WantedLogits
from powerinfer.quant import get_format
from powerinfer.values import FloatArray, IntArray

__all__ = ["ScreenedHead", "check_screenable", "copy_share", "screening_obstacle"]

# Rows of whole superblocks are multiplied twice as fast as others (cpp/quant/superblock.h).
_FORMAT, _BLOCK, _WHOLE = "q4_0", 32, 256
# A copy that reads hardly less than the head costs more time than it saves.
_LARGEST_COPY = 0.85
_CHUNK_ROWS = 4096
# Norms are rounded up by more than f32 rounds them down.
_ROUNDED_UP = 1 + 2.0**-20
_TINY = 1e-30

Halves: TypeAlias = npt.NDArray[np.float16]


@dataclass(slots=True, eq=False)
class ScreenedHead:
    """A copy of the head, and how much work it left.

    Attributes:
        computed_rows: rows of the head that screened tokens read.
        screened_tokens: number of these tokens.
    """

    copy: SomeHeadCopy
    computed_rows: int = 0
    screened_tokens: int = 0

    @classmethod
    def of(cls, ops: Backend, head: SomeLinear, states: FloatArray) -> "ScreenedHead":
        """Copy a head; `states`, f32[num_tokens, hidden_size], are typical inputs.

        Raises:
            NumericsError: the head holds NaN, infinity or numbers that no copy can hold.
        """
        matrix = head.matrix
        columns = _copied_columns(ops, matrix, states)
        num_double = len(columns) - states.shape[1]
        copy = _copied(ops, matrix, columns, num_double)
        norms, double_error = _norms(ops, matrix, copy, columns, num_double)
        return cls(HeadCopy(copy, columns, norms, double_error))

    @property
    def computed_share(self) -> float | None:
        """Share of the head's rows that screened tokens read so far; None before the first."""
        if not self.screened_tokens:
            return None
        vocab_size: int = self.copy.norms.shape[1]
        return self.computed_rows / (self.screened_tokens * vocab_size)

    def num_bytes(self, ops: Backend) -> int:
        """Bytes of the copy, which every screened step reads."""
        return ops.matrix_bytes(self.copy.matrix) + self.copy.norms.nbytes

    def logits(
        self,
        ops: Backend,
        head: SomeLinear,
        states: FloatArray,
        wanted: Sequence[WantedLogits | None] | None,
    ) -> FloatArray:
        """Compute logits of decode rows: f32[num_tokens, vocab_size].

        Args:
            states: f32[num_tokens, hidden_size], inputs of the head.
            wanted: for each token the logits that are needed, None for all.
        """
        few = [] if wanted is None else [row for row, each in enumerate(wanted) if each is not None]
        if not few or wanted is None:
            return ops.to_host(ops.linear(states, (head,))[0])
        chosen = [each for each in wanted if each is not None]
        part = states if len(few) == len(states) else np.ascontiguousarray(states[few])
        logits, computed = ops.screened_head(part, head, self.copy, chosen)
        self.computed_rows += computed
        self.screened_tokens += len(few)
        if len(few) == len(states):
            return logits
        others = [row for row, each in enumerate(wanted) if each is None]
        out = np.empty((len(states), logits.shape[1]), np.float32)
        out[few] = logits
        full = ops.linear(np.ascontiguousarray(states[others]), (head,))[0]
        out[others] = ops.to_host(full)
        return out


def check_screenable(ops: Backend, head: SomeLinear, scales: Scales) -> None:
    """Raise UnsupportedError if a screened head cannot compute the model's logits, or is slower."""
    obstacle = screening_obstacle(ops, head, scales)
    if obstacle is not None:
        raise UnsupportedError(f"a screened head is not possible: {obstacle}", remedy="{head}")


def screening_obstacle(ops: Backend, head: SomeLinear, scales: Scales) -> str | None:
    """Return what is against a screened head of a model; None if nothing is."""
    _, columns = ops.matrix_shape(head.matrix)
    if scales.logits != 1.0 or scales.logit_soft_cap is not None:
        return "this model scales or caps its logits"
    if columns % _BLOCK:
        return f"rows of {columns} numbers cannot be copied in blocks of {_BLOCK}"
    if copy_share(ops, head) > _LARGEST_COPY:
        name = ops.matrix_format(head.matrix)
        return f"the output head is in {name}, of which a copy is no smaller"
    return None


def copy_share(ops: Backend, head: SomeLinear) -> float:
    """Return the bytes of a copy in those of the head, whose rows are whole blocks."""
    rows, columns = ops.matrix_shape(head.matrix)
    return _copy_bytes(columns) * rows / ops.matrix_bytes(head.matrix)


def _copy_size(columns: int) -> int:
    """Columns of a copy: whole superblocks, with room for columns that are in it twice."""
    return min(columns // _WHOLE * _WHOLE + _WHOLE, 2 * columns)


def _copy_bytes(columns: int) -> int:
    """Bytes of a row of a copy with its norms."""
    return get_format(_FORMAT).num_bytes(_copy_size(columns)) + 8


def _copied_columns(ops: Backend, matrix: Matrix, states: FloatArray) -> IntArray:
    """Columns of the copy, i32[copy_size]; double ones are those that make most of the logits.

    Each part begins with the largest inputs, so that blocks of int8 hold numbers of one size.
    """
    inputs = np.square(states).sum(axis=0, dtype=np.float64)
    squares: npt.NDArray[np.float64] = np.zeros(len(inputs))
    for _, rows in _decoded(ops, matrix):
        squares += np.square(rows).sum(axis=0, dtype=np.float64)
    num_double = _copy_size(len(inputs)) - len(inputs)
    order = np.argsort(-squares * inputs, kind="stable").astype(np.int32)
    double, single = (
        part[np.argsort(-inputs[part], kind="stable")] for part in np.split(order, [num_double])
    )
    return np.concatenate([double, single, double])


def _decoded(ops: Backend, matrix: Matrix) -> Iterator[tuple[slice, FloatArray]]:
    """Decode a matrix in chunks of rows: f32[chunk, columns]."""
    num_rows, _ = ops.matrix_shape(matrix)
    for first in range(0, num_rows, _CHUNK_ROWS):
        chunk = slice(first, min(num_rows, first + _CHUNK_ROWS))
        yield chunk, ops.embed(matrix, np.arange(chunk.start, chunk.stop, dtype=np.int32))


def _copied(ops: Backend, matrix: Matrix, columns: IntArray, num_double: int) -> Matrix:
    """Copy columns, by way of f16, whose rounding counts as an error of the copy."""
    num_rows, size = ops.matrix_shape(matrix)
    halves = np.empty((num_rows, len(columns)), np.float16)
    with np.errstate(over="ignore", invalid="ignore"):  # the encoder refuses what is not finite
        for chunk, rows in _decoded(ops, matrix):
            halves[chunk, :size] = rows[:, columns[:size]]
            first = np.ascontiguousarray(halves[chunk, :num_double])
            known = next(_decoded(ops, _encoded(ops, first, _FORMAT)))[1]
            halves[chunk, size:] = rows[:, columns[size:]] - known[:, :num_double]
    return _encoded(ops, halves, _FORMAT)


def _encoded(ops: Backend, numbers: Halves, format_name: str) -> Matrix:
    data = numbers.reshape(-1).view(np.uint8)
    tensor = Tensor("output", numbers.shape, "f16", data, Path("output"))
    return ops.recode(ops.matrix(tensor, MatrixUse.EMBEDDING), format_name)


def _norms(
    ops: Backend, matrix: Matrix, copy: Matrix, columns: IntArray, num_double: int
) -> tuple[FloatArray, float]:
    """Bound the errors, see `HeadCopy`."""
    num_rows, size = ops.matrix_shape(matrix)
    norms, most = np.empty((2, num_rows), np.float32), 0.0
    for (chunk, rows), (_, copied) in zip(_decoded(ops, matrix), _decoded(ops, copy), strict=True):
        errors = rows[:, columns[:size]].astype(np.float64) - copied[:, :size]
        errors[:, :num_double] -= copied[:, size:]
        whole = np.maximum(np.linalg.norm(rows.astype(np.float64), axis=1), _TINY)
        double = np.linalg.norm(errors[:, :num_double], axis=1)
        most = max(most, float((double / whole).max()))
        norms[0, chunk] = np.linalg.norm(errors[:, num_double:], axis=1) * _ROUNDED_UP
        norms[1, chunk] = whole * _ROUNDED_UP
    return norms, most * _ROUNDED_UP
