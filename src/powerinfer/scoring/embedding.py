"""Embeddings of texts: pooled hidden states of their tokens."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from powerinfer.errors import NumericsError
from powerinfer.loading.loader import LoadedModel
from powerinfer.loading.step import TokenSequence
from powerinfer.options.option_kinds import Choice
from powerinfer.values import FloatArray

__all__ = ["check_pooling", "embed_texts"]

_MEAN, _LAST = "mean", "last"
_POOLINGS = Choice("pooling", (_MEAN, _LAST))


def check_pooling(pooling: object) -> None:
    """Check the name of a pooling.

    Raises:
        UnsupportedError: it is unknown; names the known ones.
    """
    _POOLINGS(pooling)


def embed_texts(
    loaded: LoadedModel,
    sequence: TokenSequence,
    texts: Sequence[Sequence[int]],
    pooling: str,
    *,
    normalize: bool,
) -> FloatArray:
    """Embed each text as a vector: f32[num_texts, hidden_size].

    Args:
        texts: token ids, each with at least one besides BOS at the beginning; see `read_texts`.
        pooling: `mean` of the states of all tokens except BOS at the beginning, which says nothing
            about the text; `last` takes that of the last token, which has seen all others.
        normalize: scale each vector to length 1, so that products are cosines.

    Raises:
        NumericsError: the model produced NaN or infinity; names the layer.
    """
    bos_id = loaded.tokenizer.bos_id
    vectors = np.empty((len(texts), loaded.model.config.hidden_size), np.float32)
    for vector, token_ids in zip(vectors, texts, strict=True):
        sequence.truncate(0)
        num_pooled = 1 if pooling == _LAST else len(token_ids) - int(token_ids[0] == bos_id)
        states = sequence.extend_states(token_ids, num_pooled)
        if not np.isfinite(states).all():
            error = NumericsError("hidden states are NaN or infinite")
            raise loaded.explain_non_finite(sequence.token_ids, error)
        pooled = states.mean(axis=0, dtype=np.float64)
        vector[:] = _with_length_one(pooled) if normalize else pooled
    return vectors


def _with_length_one(vector: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Scale a vector to length 1; zeros stay."""
    length = float(np.linalg.norm(vector))
    return vector / length if length > 0 else vector
