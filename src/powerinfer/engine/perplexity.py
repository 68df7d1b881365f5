"""Perplexity of a model on a text, by llama.cpp's method so that results are comparable.

The text is tokenized as a whole and cut into windows of the context's length that do not overlap.
BOS replaces the first token of each window if the vocabulary adds one. Only the second half of a
window is scored, so every scored token has at least half a context before it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from powerinfer.engine.llm import LLM
from powerinfer.errors import PromptError
from powerinfer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from powerinfer.scoring.scoring import Score

__all__ = [
    "Perplexity",
    "count_windows",
    "perplexity_windows",
    "scored_windows",
    "text_windows",
]


@dataclass(frozen=True, slots=True)
class Perplexity:
    """The estimate after some windows.

    Attributes:
        nll_sum: sum of the negative log likelihoods of the scored tokens.
        nll_square_sum: sum of their squares.
    """

    nll_sum: float = 0.0
    nll_square_sum: float = 0.0
    num_scored: int = 0
    num_windows: int = 0

    def plus(self, nll: npt.NDArray[np.float64]) -> "Perplexity":
        """Add a window's f64[num_scored] negative log likelihoods; return a new estimate."""
        return Perplexity(
            self.nll_sum + float(nll.sum()),
            self.nll_square_sum + float((nll * nll).sum()),
            self.num_scored + len(nll),
            self.num_windows + 1,
        )

    @property
    def value(self) -> float:
        """Exponential of the mean negative log likelihood."""
        return math.exp(self.nll_sum / self.num_scored)

    @property
    def standard_error(self) -> float:
        """Standard error of `value`, by the delta method; tokens count as independent."""
        if self.num_scored < 2:
            return 0.0
        mean = self.nll_sum / self.num_scored
        variance = max(0.0, self.nll_square_sum / self.num_scored - mean * mean)
        return self.value * math.sqrt(variance / (self.num_scored - 1))


def count_windows(token_ids: Sequence[int], window: int) -> int:
    """Return the number of whole windows.

    Raises:
        PromptError: there is none, or a window is too short to score anything.
    """
    if window < 4:
        raise PromptError(f"windows of text need at least 4 tokens, got {window}")
    if len(token_ids) < window:
        raise PromptError(
            f"the text has {len(token_ids)} tokens, less than one window of {window}",
            remedy="take a longer text or a smaller context ({context_length})",
        )
    return len(token_ids) // window


def perplexity_windows(llm: LLM, token_ids: Sequence[int], window: int) -> Iterator[Perplexity]:
    """Score the windows of a text and yield the running estimate after each.

    Args:
        llm: the model; its context must hold a window.
        token_ids: the tokenized text, with BOS where the vocabulary adds one.

    Raises:
        PromptError: the text is shorter than a window.
        NumericsError: the model produced NaN or infinity.
    """
    estimate = Perplexity()
    for score in scored_windows(llm, token_ids, window):
        estimate = estimate.plus(-np.array(score.token_logprobs))
        yield estimate


def scored_windows(llm: LLM, token_ids: Sequence[int], window: int) -> "Iterator[Score]":
    """Score the second half of each window of a text, with errors as `perplexity_windows`."""
    half = window // 2 + 1
    for tokens in text_windows(llm.loaded.tokenizer, token_ids, window):
        yield from llm.score([(tokens[:half], tokens[half:])])


def text_windows(
    tokenizer: Tokenizer, token_ids: Sequence[int], window: int
) -> Iterator[list[int]]:
    """Cut a text into windows, which begin with BOS if the vocabulary asks for it."""
    for number in range(count_windows(token_ids, window)):
        tokens = list(token_ids[number * window : (number + 1) * window])
        if tokenizer.add_bos and tokenizer.bos_id is not None:
            tokens[0] = tokenizer.bos_id
        yield tokens
