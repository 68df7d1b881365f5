"""Log probabilities of tokens under the model's own distribution, from its logits.

"Own" means the softmax of the logits as the model gave them: before bias, penalties, processors,
temperature and filters. Natural logarithms; the largest logit is subtracted first, so that nothing
overflows.
"""

from collections.abc import Callable
from dataclasses import dataclass

from powerinfer.sampling.sampler import Softmax, largest
from powerinfer.values import FloatArray

__all__ = ["TokenLogprob", "logprob_of", "token_logprob"]


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


def logprob_of(row: FloatArray, token_id: int) -> float:
    """Log probability of a token, from finite logits f32[vocab_size]."""
    return float(row[token_id]) - Softmax(row).log_sum


def token_logprob(
    row: FloatArray,
    token_id: int,
    num_top: int,
    piece: Callable[[int], str],
    softmax: Softmax | None = None,
) -> TokenLogprob:
    """The log probabilities in the place of one token.

    Args:
        row: finite logits f32[vocab_size] of the model.
        token_id: the token that was chosen.
        num_top: how many of the likeliest tokens to list.
        piece: text of a token.
        softmax: of the row, where the sampler has it already (`Sampler.softmax`).
    """
    total = (softmax or Softmax(row)).log_sum
    ids = largest(row, num_top) if num_top else ()
    return TokenLogprob(
        token_id=token_id,
        text=piece(token_id),
        logprob=float(row[token_id]) - total,
        top=tuple((int(each), float(row[each]) - total) for each in ids),
    )
