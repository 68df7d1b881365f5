"""The rows of token ids that a run trains on, in an order that its seed decides."""

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from powerinfer.errors import PowerInferError
from powerinfer.train.sparsify.recipe import Recipe

__all__ = ["TokenIds", "identity_of", "row_numbers", "rows_of"]

TokenIds = NDArray[np.integer]
"""Token ids of a text, [num_tokens]; may be mapped."""

_SAMPLES = 1 << 16


def rows_of(tokens: TokenIds, seq_len: int) -> TokenIds:
    """Cut token ids into rows [num_rows, seq_len + 1]; a rest that is too short is dropped."""
    count = len(tokens) // (seq_len + 1)
    if count < 1:
        raise PowerInferError(
            f"the text has {len(tokens)} tokens; one row of training takes {seq_len + 1}",
            remedy="give more text, or a smaller {seq_len}",
        )
    return tokens[: count * (seq_len + 1)].reshape(count, seq_len + 1)


def identity_of(tokens: TokenIds) -> str:
    """An identity of token ids: their number, and a hash of samples from all over them."""
    samples = np.ascontiguousarray(tokens[:: max(1, len(tokens) // _SAMPLES)])
    return f"{len(tokens)} {hashlib.sha256(samples.astype('<i8').tobytes()).hexdigest()}"


def row_numbers(step: int, num_rows: int, recipe: Recipe) -> list[int]:
    """Numbers of the rows of a step from 0: all rows in a new random order in every epoch."""
    first = step * recipe.rows
    places = (divmod(place, num_rows) for place in range(first, first + recipe.rows))
    return [int(_order(recipe.seed, epoch, num_rows)[number]) for epoch, number in places]


@lru_cache(maxsize=1)
def _order(seed: int, epoch: int, num_rows: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(num_rows)
