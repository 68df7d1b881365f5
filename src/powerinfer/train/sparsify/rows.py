"""The rows of token ids that a run trains on, in an order that its seed decides."""

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from powerinfer.errors import PowerInferError
from powerinfer.train.sparsify.recipe import Recipe

__all__ = ["RowOrder", "TokenIds", "identity_of", "rows_of"]

TokenIds = NDArray[np.integer]
"""Token ids of a text, u16 or u32, [num_tokens]; may be mapped."""

_SAMPLES = 1 << 16


def rows_of(tokens: TokenIds, seq_len: int) -> TokenIds:
    """Cut token ids into rows [num_rows, seq_len + 1]; a rest that is too short is left out.

    Raises:
        PowerInferError: there is not one row.
    """
    count = len(tokens) // (seq_len + 1)
    if count < 1:
        raise PowerInferError(
            f"the text has {len(tokens)} tokens; one row of training takes {seq_len + 1}",
            remedy="give more text, or a smaller {seq_len}",
        )
    return tokens[: count * (seq_len + 1)].reshape(count, seq_len + 1)


def identity_of(tokens: TokenIds) -> str:
    """What tells these token ids from others: their number, and samples all over them."""
    samples = np.ascontiguousarray(tokens[:: max(1, len(tokens) // _SAMPLES)])
    return f"{len(tokens)} {hashlib.sha256(samples.astype('<i8').tobytes()).hexdigest()}"


class RowOrder:
    """Which rows a step reads: all of them in a new random order in every epoch."""

    def __init__(self, num_rows: int, recipe: Recipe) -> None:
        """Take the number of rows there are."""
        self._num_rows, self._recipe = num_rows, recipe
        self._epoch = -1
        self._order: NDArray[np.int64] = np.empty(0, np.int64)

    def numbers(self, step: int) -> list[int]:
        """Numbers of the rows of a step (from 0)."""
        first = step * self._recipe.rows
        return list(self._drawn(range(first, first + self._recipe.rows)))

    def _drawn(self, places: range) -> Iterator[int]:
        for place in places:
            epoch, number = divmod(place, self._num_rows)
            if epoch != self._epoch:
                generator = np.random.default_rng([self._recipe.seed, epoch])
                self._epoch, self._order = epoch, generator.permutation(self._num_rows)
            yield int(self._order[number])
