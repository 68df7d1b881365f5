"""Log probabilities of tokens under the model's own distribution, from its logits.

"Own" means the softmax of the logits as the model gave them: before bias, penalties, processors,
temperature and filters. Natural logarithms; sums of exponentials are float64, and the largest logit
is subtracted first, so that nothing overflows.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from powerinfer.engine.sampler import largest
from powerinfer.values import FloatArray

__all__ = ["TokenLogprob", "log_sum_exp", "logprob_of", "token_logprob"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely the model found a token in its place.

    Attributes:
        token_id: of the token.
        text: its piece of text; U+FFFD stands for a part of a character.
        logprob: natural logarithm of its probability.
        top: (token id, log probability) of the likeliest tokens in this place, likeliest first,
            lower id first among equals; as many as were asked for, so the token itself may not be
            among them.
    """

    token_id: int
    text: str
    logprob: float
    top: tuple[tuple[int, float], ...]


def log_sum_exp(row: FloatArray) -> float:
    """Log of the sum of exponentials of f32[vocab_size]."""
    highest = float(row.max())
    return highest + math.log(float(np.exp(row - highest).sum(dtype=np.float64)))


def logprob_of(row: FloatArray, token_id: int) -> float:
    """Log probability of a token, from finite logits f32[vocab_size]."""
    return float(row[token_id]) - log_sum_exp(row)


def token_logprob(
    row: FloatArray, token_id: int, num_top: int, piece: Callable[[int], str]
) -> TokenLogprob:
    """The log probabilities in the place of one token.

    Args:
        row: finite logits f32[vocab_size] of the model.
        token_id: the token that was chosen.
        num_top: how many of the likeliest tokens to list.
        piece: text of a token.
    """
    total = log_sum_exp(row)
    ids = largest(row, num_top) if num_top else ()
    return TokenLogprob(
        token_id=token_id,
        text=piece(token_id),
        logprob=float(row[token_id]) - total,
        top=tuple((int(each), float(row[each]) - total) for each in ids),
    )
