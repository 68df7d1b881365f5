"""Logits of a prompt, and how likely texts are: each token given all before it.

Texts are computed one after the other, those with the same context next to each other, so that it
is computed once. A text is cut into steps by rules that look at nothing but this text: context and
continuation apart, each into steps of `batch_size` tokens. Results are therefore the same bits
whatever else is scored in the same call, on the CPU; GPUs that move neurons while they work make
no such promise.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from powerinfer.errors import NumericsError, PromptError
from powerinfer.loading.loader import LoadedModel
from powerinfer.loading.step import TokenSequence
from powerinfer.options.option_kinds import WholeNumber, as_python
from powerinfer.prompts.texts import ContextAndContinuation
from powerinfer.sampling.logprobs import logprob_of
from powerinfer.sampling.sampler import check_finite
from powerinfer.values import FloatArray

__all__ = ["Score", "prompt_logits", "score_texts"]


@dataclass(frozen=True, slots=True)
class Score:
    """How likely a text is, or the continuation of a context.

    Attributes:
        token_ids: the tokens that were scored.
        token_logprobs: the natural logarithm of each one's probability, given all before it, by the
            model's own distribution.
        is_greedy: whether greedy decoding would give exactly these tokens.
    """

    token_ids: list[int]
    token_logprobs: list[float]
    is_greedy: bool

    @property
    def logprob(self) -> float:
        """Log probability of all together: the sum of `token_logprobs`."""
        return math.fsum(self.token_logprobs)

    @property
    def num_tokens(self) -> int:
        """Tokens scored; exp(-logprob / num_tokens) is their perplexity."""
        return len(self.token_ids)


def prompt_logits(
    loaded: LoadedModel, sequence: TokenSequence, token_ids: Sequence[int], last: object
) -> FloatArray:
    """Logits after each of the last tokens of a prompt: f32[num_wanted, vocab_size].

    Args:
        loaded: the model.
        sequence: empty.
        token_ids: of the prompt.
        last: how many are wanted; None for one per token.

    Raises:
        PromptError: `last` is not between 1 and the number of tokens.
        NumericsError: the model produced NaN or infinity; names the layer.
    """
    num_wanted = len(token_ids)
    if last is not None:
        try:
            num_wanted = WholeNumber(1, len(token_ids), ", the length of the prompt").read(
                as_python(last)
            )
        except ValueError as error:
            raise PromptError(f"last must be {error}, got {repr(last)[:60]}") from None
    logits = sequence.extend_scored(token_ids, num_wanted)
    _check(loaded, sequence, logits)
    return logits


def score_texts(
    loaded: LoadedModel, sequence: TokenSequence, items: Sequence[ContextAndContinuation]
) -> list[Score]:
    """The score of each item, in the order given.

    Args:
        loaded: the model.
        sequence: empty.
        items: each fits the context but for its last token.

    Raises:
        NumericsError: the model produced NaN or infinity; names the layer.
    """
    scorer = _Scorer(loaded, sequence)
    scores: dict[ContextAndContinuation, Score] = {}
    for item in sorted(set(items)):
        scores[item] = scorer.score(item)
    return [scores[item] for item in items]


class _Scorer:
    """Scores one continuation after the other; keeps the context of the last one."""

    def __init__(self, loaded: LoadedModel, sequence: TokenSequence) -> None:
        self._loaded = loaded
        self._sequence = sequence
        self._step_size = loaded.options.batch_size
        # The context that the sequence holds, in steps, and the logits after its last token.
        self._steps: list[tuple[int, ...]] = []
        self._after_context: FloatArray | None = None

    def score(self, item: ContextAndContinuation) -> Score:
        """Score a continuation; the sequence holds its context afterwards."""
        logprobs: list[float] = []
        is_greedy = True
        for logits in self._logits(item):
            _check(self._loaded, self._sequence, logits)
            for row in logits:
                target = item.continuation[len(logprobs)]
                is_greedy = is_greedy and int(row.argmax()) == target
                logprobs.append(logprob_of(row, target))
        self._sequence.truncate(len(item.context))
        return Score(list(item.continuation), logprobs, is_greedy)

    def _logits(self, item: ContextAndContinuation) -> Iterator[FloatArray]:
        """What predicts the continuation, step by step: f32[num_tokens, vocab_size]."""
        yield self._compute_context(item.context)
        for step in _cut(item.continuation[:-1], self._step_size):
            yield self._sequence.extend_scored(step, len(step))

    def _compute_context(self, context: tuple[int, ...]) -> FloatArray:
        """Logits after the context, f32[1, vocab_size], computing what the sequence lacks."""
        steps = _cut(context, self._step_size)
        if self._after_context is not None and steps == self._steps:
            return self._after_context
        shared = 0
        # The last step is computed in any case: its logits are wanted.
        while shared < min(len(steps) - 1, len(self._steps)) and (
            steps[shared] == self._steps[shared]
        ):
            shared += 1
        self._sequence.truncate(shared * self._step_size)
        # In case that a step fails.
        self._steps, self._after_context = steps[:shared], None
        for step in steps[shared:-1]:
            self._sequence.extend_scored(step, 0)
        self._after_context = np.array(self._sequence.extend_scored(steps[-1], 1))
        self._steps = steps
        return self._after_context


def _cut(token_ids: tuple[int, ...], size: int) -> list[tuple[int, ...]]:
    return [token_ids[start : start + size] for start in range(0, len(token_ids), size)]


def _check(loaded: LoadedModel, sequence: TokenSequence, logits: FloatArray) -> None:
    try:
        check_finite(logits)
    except NumericsError as error:
        raise loaded.explain_non_finite(sequence.token_ids, error) from error
