"""Scores of texts and logits of prompts, each token given all before it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from powerinfer.errors import PromptError
from powerinfer.options.option_kinds import WholeNumber, as_python
from powerinfer.sampling.logprobs import TokenLogprob

__all__ = ["Score", "num_wanted", "score_of"]


@dataclass(frozen=True, slots=True)
class Score:
    """Log probabilities of a text, or of the continuation of a context.

    Attributes:
        token_ids: the scored tokens.
        token_logprobs: natural logarithm of the probability of each token, given all before it,
            under the model's own distribution.
        greedy_ids: the likeliest token at each position, given all tokens before it.
    """

    token_ids: list[int]
    token_logprobs: list[float]
    greedy_ids: list[int]

    @property
    def is_greedy(self) -> bool:
        """True if greedy decoding would generate exactly these tokens."""
        return self.token_ids == self.greedy_ids

    @property
    def logprob(self) -> float:
        """Log probability of all tokens together: the sum of `token_logprobs`."""
        return math.fsum(self.token_logprobs)

    @property
    def num_tokens(self) -> int:
        """Number of scored tokens; exp(-logprob / num_tokens) is their perplexity."""
        return len(self.token_ids)


def num_wanted(last: object, num_tokens: int) -> int:
    """Return how many tokens at the end of a prompt `last` selects; None selects all.

    Raises:
        PromptError: `last` is not between 1 and the number of tokens.
    """
    if last is None:
        return num_tokens
    try:
        return WholeNumber(1, num_tokens, ", the length of the prompt")(as_python(last))
    except ValueError as error:
        raise PromptError(f"last must be {error}, got {repr(last)[:60]}") from None


def score_of(logprobs: Sequence[TokenLogprob]) -> Score:
    """Make a score from log probabilities that list the likeliest token at each position."""
    return Score(
        token_ids=[each.token_id for each in logprobs],
        token_logprobs=[each.logprob for each in logprobs],
        greedy_ids=[each.top[0][0] for each in logprobs],
    )
