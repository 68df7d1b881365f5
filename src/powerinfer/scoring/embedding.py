"""Embeddings of texts: pooled hidden states of their tokens."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from powerinfer.options.option_kinds import Choice
from powerinfer.values import FloatArray

__all__ = ["POOLINGS", "check_pooling", "num_pooled", "pooled"]

_MEAN, _LAST = "mean", "last"

POOLINGS = (_MEAN, _LAST)
"""Ways to pool; the first is the default."""

check_pooling = Choice("pooling", POOLINGS)


def num_pooled(token_ids: Sequence[int], pooling: str, bos_id: int | None) -> int:
    """Return how many tokens at the end of a text are pooled.

    For `mean` all tokens except BOS at the beginning, which says nothing about the text; for `last`
    the last token, which has seen all others.
    """
    return 1 if pooling == _LAST else len(token_ids) - int(token_ids[0] == bos_id)


def pooled(states: FloatArray, *, normalize: bool) -> FloatArray:
    """Pool f32[num_pooled, hidden_size] states to a vector, of length 1 if wanted; zeros stay."""
    vector: npt.NDArray[np.float64] = states.mean(axis=0, dtype=np.float64)
    length = float(np.linalg.norm(vector))
    if normalize and length > 0:
        vector = vector / length
    return vector.astype(np.float32)
