"""Scores of texts and logits of prompts, each token given all before it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from powerinfer.errors import NumericsError, PromptError
from powerinfer.loading.loader import LoadedModel
from powerinfer.loading.step import TokenSequence
from powerinfer.options.option_kinds import WholeNumber, as_python
from powerinfer.sampling.logprobs import TokenLogprob
from powerinfer.sampling.sampler import check_finite
from powerinfer.values import FloatArray

__all__ = ["Score", "prompt_logits", "score_of"]


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


def prompt_logits(
    loaded: LoadedModel, sequence: TokenSequence, token_ids: Sequence[int], last: object
) -> FloatArray:
    """Compute the logits after each of the last tokens of a prompt: f32[num_wanted, vocab_size].

    Args:
        token_ids: tokens of the prompt.
        last: number of positions wanted; None for all.

    Raises:
        PromptError: `last` is not between 1 and the number of tokens.
        NumericsError: the model produced NaN or infinity; names the layer.
    """
    num_wanted = len(token_ids)
    if last is not None:
        try:
            check = WholeNumber(1, len(token_ids), ", the length of the prompt")
            num_wanted = check(as_python(last))
        except ValueError as error:
            raise PromptError(f"last must be {error}, got {repr(last)[:60]}") from None
    logits = sequence.extend_scored(token_ids, num_wanted)
    try:
        check_finite(logits)
    except NumericsError as error:
        raise loaded.explain_non_finite(sequence.token_ids, error) from error
    return logits


def score_of(logprobs: Sequence[TokenLogprob]) -> Score:
    """Make a score from log probabilities that list the likeliest token at each position."""
    return Score(
        token_ids=[each.token_id for each in logprobs],
        token_logprobs=[each.logprob for each in logprobs],
        greedy_ids=[each.top[0][0] for each in logprobs],
    )
