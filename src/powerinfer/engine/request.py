"""Requests to the engine and its outputs: plain values that outlive the model."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from powerinfer.engine.drafts.drafter import Drafter
from powerinfer.errors import ContextLengthError, PowerInferError, PromptError
from powerinfer.models.metrics import CostMeter, Metrics
from powerinfer.sampling.finish_reason import FinishReason
from powerinfer.sampling.logit_processors import check_biased_ids
from powerinfer.sampling.logprobs import TokenLogprob
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.values import FloatArray

__all__ = ["Output", "PromptRows", "Request", "RequestHandle", "Times"]


class PromptRows(StrEnum):
    """Numbers that a request may ask for at positions of its prompt."""

    LOGITS = "logits"
    STATES = "hidden states"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt and the `params.n` texts that are to continue it.

    Attributes:
        prompt_ids: at least one, fewer than the context has room for.
        params: sampling parameters; text number i has the seed `seed` + i.
        is_prompt: one flag per prompt token: given, not generated earlier (`Batch.is_prompt`);
            None: all were given.
        prompt_logprobs: number of likeliest tokens to report at each position of the prompt, 0 for
            the prompt's own token only; None: report nothing.
        scored_ids: tokens to report `prompt_logprobs` for; the last one follows the prompt, so
            this many positions at its end are reported. None: all tokens of the prompt but its
            first. Tokens before these are computed without logits, or reused.
        prompt_rows: kind of the rows to report for the last `num_rows` positions of the prompt, in
            place of log probabilities; None: report none.
        num_rows: see `prompt_rows`.
        reuses_prefix: reuse keys and values of earlier requests with the same beginning.
        shares_answers: also reuse those of generated tokens; the bits then depend on it.
        drafter: source of its drafts in place of what `params.draft` chooses, for measurements.
        snapshot_positions: numbers of prompt tokens behind which later prompts may go on otherwise,
            such as the ends of messages (`message_ends`); models with state keep it there.
    """

    prompt_ids: Sequence[int]
    params: SamplingParams
    is_prompt: Sequence[bool] | None = None
    prompt_logprobs: int | None = None
    scored_ids: Sequence[int] | None = None
    prompt_rows: PromptRows | None = None
    num_rows: int = 0
    reuses_prefix: bool = True
    shares_answers: bool = False
    drafter: Drafter | None = None
    snapshot_positions: Sequence[int] = ()

    @property
    def first_wanted(self) -> int | None:
        """First position of the prompt with an output; None if there is none."""
        if self.prompt_rows is not None:
            return len(self.prompt_ids) - self.num_rows
        if self.prompt_logprobs is None:
            return None
        return 0 if self.scored_ids is None else len(self.prompt_ids) - len(self.scored_ids)

    def check(self, most_tokens: int, vocab_size: int) -> None:
        """Raise PromptError if a context of `most_tokens`, or the vocabulary, forbids it."""
        num_prompt = len(self.prompt_ids)
        if not num_prompt:
            raise PromptError("there are no tokens to compute; the prompt is empty")
        if num_prompt > most_tokens:
            raise ContextLengthError(
                f"the prompt has {num_prompt} tokens, but only {most_tokens} fit",
                remedy="use a larger context ({context_length})",
            )
        check_biased_ids(self.params, vocab_size)
        if self.is_prompt is not None and len(self.is_prompt) != num_prompt:
            raise PromptError(
                f"is_prompt has {len(self.is_prompt)} entries, the prompt has {num_prompt} tokens"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Output of one step for one text of a request.

    Attributes:
        index: number of the text, from 0.
        text: text that is certain to be kept; empty while a character or stop string is incomplete.
        token_ids: tokens of this step, without the one that ends the text.
        logprobs: one for each of `token_ids`; empty unless asked for.
        finish_reason: reason of the end; None while the text goes on.
        stop: the stop string that ended it; None if something else did.
        error: the error that ended this text without a result; `finish_reason` is None then.
    """

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop: str | None = None
    error: PowerInferError | None = None

    @property
    def is_last(self) -> bool:
        """True if this is the last output of its text."""
        return self.finish_reason is not None or self.error is not None


@dataclass(slots=True)
class Times:
    """Times of a request's events, in seconds of `time.monotonic`; None: not yet.

    Attributes:
        submitted: the request arrived.
        admitted: it began to run.
        first_token: the first token of its first text was chosen.
        last: its last text ended.
    """

    submitted: float = field(default_factory=time.monotonic)
    admitted: float | None = None
    first_token: float | None = None
    last: float | None = None


@dataclass(slots=True, eq=False, weakref_slot=True)
class RequestHandle:
    """A submitted request and its progress; compared by identity.

    Attributes:
        seed: seed of text 0; text number i has `seed` + i.
        lengths: number of generated tokens of each text.
        over: numbers of the texts that have ended.
        unread: outputs that nobody has taken yet.
        num_cached_tokens: prompt tokens whose keys and values were in the cache.
        prompt_logprobs: see `Request.prompt_logprobs`; None until the prompt is computed.
        prompt_rows: f32[num_rows, columns], see `Request.prompt_rows`; None likewise.
        is_cancelled: the engine should end the texts.
    """

    request: Request
    seed: int
    costs: tuple[CostMeter, ...]
    lengths: list[int] = field(init=False)
    over: set[int] = field(default_factory=set)
    unread: deque[Output] = field(default_factory=deque)
    num_cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_rows: FloatArray | None = None
    is_cancelled: bool = False
    times: Times = field(default_factory=Times)

    def __post_init__(self) -> None:
        self.lengths = [0] * self.request.params.n

    @property
    def num_prompt_tokens(self) -> int:
        """Number of prompt tokens, including those found in the cache."""
        return len(self.request.prompt_ids)

    @property
    def num_generated(self) -> int:
        """Number of generated tokens in all texts."""
        return sum(self.lengths)

    @property
    def is_over(self) -> bool:
        """True if all texts have ended."""
        return len(self.over) == self.request.params.n

    def metrics(self, index: int = 0) -> Metrics:
        """Return the cost of one text so far."""
        return self.costs[index].metrics(self.lengths[index])
