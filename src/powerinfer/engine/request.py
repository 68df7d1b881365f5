"""What a caller asks the engine for, and what it gets back: plain values that outlive the model."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from powerinfer.errors import PowerInferError
from powerinfer.models import LayerShares
from powerinfer.models.metrics import CostMeter, Metrics
from powerinfer.sampling.finish_reason import FinishReason
from powerinfer.sampling.logprobs import TokenLogprob
from powerinfer.sampling.sampling_params import SamplingParams

__all__ = ["EngineStatistics", "Output", "Request", "RequestHandle", "Times"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt and the `params.n` texts that are to continue it.

    Attributes:
        prompt_ids: at least one, fewer than the context has room for.
        params: sampling parameters; text number i has the seed `seed` + i.
        is_prompt: of each prompt token whether it was given and not an answer of before
            (`Batch.is_prompt`); None: all were given.
        prompt_logprobs: how many of the likeliest tokens to list in each place of the prompt, 0 for
            the prompt's own alone; None: nothing of the prompt is reported.
        scored_ids: tokens whose log probabilities `prompt_logprobs` asks for, the last of which
            follows the prompt: as many places at its end are reported. None: all tokens of the
            prompt but its first. What comes before is computed without logits, or reused.
        reuses_prefix: take keys and values of earlier requests where they begin alike.
        shares_answers: of generated tokens, too, so that the bits depend on what is reused.
    """

    prompt_ids: Sequence[int]
    params: SamplingParams
    is_prompt: Sequence[bool] | None = None
    prompt_logprobs: int | None = None
    scored_ids: Sequence[int] | None = None
    reuses_prefix: bool = True
    shares_answers: bool = False

    @property
    def first_scored(self) -> int | None:
        """Position of the first token whose logits are wanted as such; None: of no token's."""
        if self.prompt_logprobs is None:
            return None
        return 0 if self.scored_ids is None else len(self.prompt_ids) - len(self.scored_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What one step added to one text of a request.

    Attributes:
        index: number of the text, from 0.
        text: that is certain to be kept; may be empty while a character or a stop string may begin.
        token_ids: generated in this step; the token that ends the text is not among them.
        logprobs: of each of `token_ids`; empty unless asked for.
        finish_reason: why the text ended; None while it goes on.
        stop: the stop string that ended it; None if something else did.
        error: why it ended without a result (`finish_reason` is None then); concerns this text.
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
        """Nothing follows for this text."""
        return self.finish_reason is not None or self.error is not None


@dataclass(slots=True)
class Times:
    """When things happened, in seconds of `time.monotonic`; None: not yet.

    Attributes:
        submitted: the request came.
        admitted: it joined those that run.
        first_token: the first token of its first text was chosen.
        last: its last text ended.
    """

    submitted: float = field(default_factory=time.monotonic)
    admitted: float | None = None
    first_token: float | None = None
    last: float | None = None


@dataclass(slots=True, eq=False, weakref_slot=True)
class RequestHandle:
    """A request on its way; compared by identity.

    Attributes:
        request: as submitted.
        seed: of text 0; text number i has this + i.
        costs: of each text.
        lengths: tokens generated of each text.
        over: numbers of the texts that have ended.
        unread: what the texts gave and nobody has taken.
        num_cached_tokens: tokens of the prompt whose keys and values were there already.
        prompt_logprobs: of each token of the prompt but the first; None until the prompt is
            computed, or if nobody asked.
        is_cancelled: nobody wants more.
        times: see `Times`.
    """

    request: Request
    seed: int
    costs: tuple[CostMeter, ...]
    lengths: list[int] = field(init=False)
    over: set[int] = field(default_factory=set)
    unread: deque[Output] = field(default_factory=deque)
    num_cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    is_cancelled: bool = False
    times: Times = field(default_factory=Times)

    def __post_init__(self) -> None:
        self.lengths = [0] * self.request.params.n

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt, those found in the cache included."""
        return len(self.request.prompt_ids)

    @property
    def num_generated(self) -> int:
        """Tokens generated, in all texts."""
        return sum(self.lengths)

    @property
    def is_over(self) -> bool:
        """All texts have ended."""
        return len(self.over) == self.request.params.n

    def metrics(self, index: int = 0) -> Metrics:
        """What one text cost so far.

        Args:
            index: of the text.
        """
        return self.costs[index].metrics(self.lengths[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """The state of an engine between two steps, and what it did since it was made.

    Attributes:
        running: texts that are computed.
        waiting: texts that wait to be.
        blocks: of keys and values there are.
        blocks_used: by texts that run.
        blocks_cached: kept for prompts that may begin alike; given up where room is needed.
        steps: steps of decoding texts, each of one or several of them.
        generated_tokens: tokens chosen.
        prompt_tokens: tokens of prompts, those found in the cache included.
        cached_tokens: of these the ones whose keys and values were there already.
        layers: share of the neurons that each layer needed for the last decode step; None before
            the first, or if the backend does not count.
    """

    running: int
    waiting: int
    blocks: int
    blocks_used: int
    blocks_cached: int
    steps: int
    generated_tokens: int
    prompt_tokens: int
    cached_tokens: int
    layers: LayerShares | None = None

    @property
    def active_share(self) -> float | None:
        """Share of the neurons that a text of the last step needed, on average."""
        return None if self.layers is None else float(self.layers.active.mean())

    @property
    def union_share(self) -> float | None:
        """Share of the neurons that any text of the last step needed."""
        return None if self.layers is None else float(self.layers.union.mean())
