"""What the server needs of a scheduler: `engine.engine.Engine`, or one that plays it."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from powerinfer.engine.request import Output, Request
from powerinfer.sampling.logprobs import TokenLogprob

__all__ = ["AnyTicket", "StepEngine", "TicketT"]


class AnyTicket(Protocol):
    """A request that was submitted; compared by identity."""

    @property
    def request(self) -> Request:
        """As it was submitted."""
        ...

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of its prompt."""
        ...

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompt whose keys and values were there already."""
        ...

    @property
    def num_generated(self) -> int:
        """Tokens generated in all of its texts."""
        ...

    @property
    def prompt_logprobs(self) -> Sequence[TokenLogprob | None] | None:
        """Of each token of the prompt but the first; None until the prompt is computed."""
        ...


TicketT = TypeVar("TicketT", bound=AnyTicket)


class StepEngine(Protocol[TicketT]):
    """Computes many requests step by step; `submit` and `cancel` may be called from any thread."""

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        ...

    def submit(self, request: Request) -> TicketT:
        """Take a request.

        Raises:
            PromptError: it can never run.
        """
        ...

    def cancel(self, ticket: TicketT) -> None:
        """End a request with its next step."""
        ...

    def step(self) -> list[tuple[TicketT, Output]]:
        """One step of all running texts."""
        ...

    def statistics(self) -> object:
        """Figures of now and since the start."""
        ...
