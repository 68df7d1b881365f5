"""Log probabilities of tokens under the model's own distribution, from its logits.

The model's own distribution is the softmax of its logits before bias, penalties, processors,
temperature and filters. Logarithms are natural; the largest logit is subtracted first, so that
nothing overflows.
"""

from collections.abc import Callable
from dataclasses import dataclass

from powerinfer.sampling.sampler import Softmax, largest
from powerinfer.values import FloatArray

__all__ = ["TokenLogprob", "token_logprob"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability of a token at its position.

    Attributes:
        token_id: id of the token.
        text: its piece of text; U+FFFD stands for a part of a character.
        logprob: natural logarithm of its probability.
        top: (token id, log probability) of the likeliest tokens at this position, likeliest first,
            lower id first among equals; as many as were asked for, so the token itself may be
            missing.
    """

    token_id: int
    text: str
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprob(
    row: FloatArray,
    token_id: int,
    num_top: int,
    piece: Callable[[int], str],
    softmax: Softmax | None = None,
) -> TokenLogprob:
    """Compute the log probabilities at the position of one token.

    Args:
        row: finite logits f32[vocab_size] of the model.
        num_top: number of likeliest tokens to list.
        piece: function that returns the text of a token.
        softmax: softmax of the row, if the sampler has computed it (`Sampler.softmax`).
    """
    total = (softmax or Softmax(row)).log_sum
    ids = largest(row, num_top) if num_top else ()
    return TokenLogprob(
        token_id=token_id,
        text=piece(token_id),
        logprob=float(row[token_id]) - total,
        top=tuple((int(each), float(row[each]) - total) for each in ids),
    )
