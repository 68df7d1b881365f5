"""What a caller holds of a request: how far it is. Plain values that outlive the model."""

import time
from collections import deque
from dataclasses import dataclass, field

from powerinfer.engine.request import Output, Request
from powerinfer.models.metrics import CostMeter, Metrics
from powerinfer.sampling.logprobs import TokenLogprob

__all__ = ["Ticket", "Times"]


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
class Ticket:
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
