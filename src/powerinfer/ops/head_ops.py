"""Protocol of an output head that computes only the logits that a choice may need.

A copy of the head in fewer bits is multiplied first. What its rounding can have cost any row is
bounded by the norm of the row's error, so the rows that may be among the largest are known, and
only these are multiplied: nothing is lost. Columns whose inputs are large are copied in more bits,
because the bound grows with the norm of the other inputs alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NoReturn, Protocol

import numpy as np

from powerinfer.errors import UnsupportedError
from powerinfer.ops.mixer_ops import VectorT_contra
from powerinfer.ops.operands import Linear, MatrixT
from powerinfer.values import FloatArray, IntArray

__all__ = ["UNWANTED_LOGIT", "HeadCopy", "HeadOps", "NoHeadOps", "WantedLogits"]

UNWANTED_LOGIT = np.finfo(np.float32).min
"""What stands for a logit that nobody wants. Finite, so that damaged weights still show."""


@dataclass(frozen=True, slots=True)
class HeadCopy(Generic[MatrixT]):
    """A copy of an output head [vocab_size, hidden_size] in fewer bits.

    Attributes:
        matrix: [vocab_size, copy_size], copy_size from hidden_size to twice that. Columns whose
            inputs are large are in it twice: first their numbers, last what these lack; the others
            are in between.
        columns: i32[copy_size], the column of the head for each of these.
        norms: f32[2, vocab_size], at least the norm of the error of each row's single columns, and
            that of the whole row of the head.
        double_error: at least the norm of the error of any row's double columns, in units of the
            norm of the row.
    """

    matrix: MatrixT
    columns: IntArray
    norms: FloatArray
    double_error: float


@dataclass(frozen=True, slots=True)
class WantedLogits:
    """The logits of a token that a choice looks at.

    Attributes:
        count: as many of the largest, and all that equal the last of them.
        margin: with those, all that are at most this much smaller than the last of them.
    """

    count: int
    margin: float = 0.0


class HeadOps(Protocol[MatrixT, VectorT_contra]):
    """The head that computes the wanted logits; part of `Ops`."""

    def screened_head(
        self,
        x: FloatArray,
        head: Linear[MatrixT, VectorT_contra],
        copy: HeadCopy[MatrixT],
        wanted: Sequence[WantedLogits],
    ) -> tuple[FloatArray, int]:
        """Compute the wanted logits of decode rows, with the bits of `linear`.

        Args:
            x: f32[num_tokens, hidden_size], in host memory.
            wanted: one for each token.

        Returns:
            f32[num_tokens, vocab_size], `UNWANTED_LOGIT` where a logit was not computed, and the
            number of logits computed: all the wanted ones, and others. If a logit is NaN, all that
            may be are computed.

        Raises:
            ShapeError: the parts do not fit each other.
        """


class NoHeadOps:
    """The operation on a backend that does not have it."""

    def screened_head(self, x: object, head: object, copy: object, wanted: object) -> NoReturn:
        """Refuse."""
        raise UnsupportedError("a screened head runs on the CPU alone", remedy="leave {head} out")
