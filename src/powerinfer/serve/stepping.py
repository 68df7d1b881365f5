"""Interface of a scheduler: `engine.engine.Engine`, or a fake in tests."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from powerinfer.engine.request import Output, Request
from powerinfer.sampling.logprobs import TokenLogprob

__all__ = ["AnyHandle", "HandleT", "StepEngine"]


class AnyHandle(Protocol):
    """A submitted request; compared by identity."""

    @property
    def request(self) -> Request:
        """The request as it was submitted."""
        ...

    @property
    def num_prompt_tokens(self) -> int:
        """Number of tokens of the prompt."""
        ...

    @property
    def num_cached_tokens(self) -> int:
        """Number of prompt tokens whose keys and values were cached."""
        ...

    @property
    def prompt_logprobs(self) -> Sequence[TokenLogprob | None] | None:
        """Log probabilities of the prompt's tokens except the first; None until it is computed."""
        ...


HandleT = TypeVar("HandleT", bound=AnyHandle)


class StepEngine(Protocol[HandleT]):
    """Computes many requests step by step; `submit` and `cancel` may be called from any thread."""

    @property
    def has_work(self) -> bool:
        """A step would do something."""
        ...

    def submit(self, request: Request) -> HandleT:
        """Accept a request.

        Raises:
            PromptError: it can never run.
        """
        ...

    def cancel(self, handle: HandleT) -> None:
        """End a request with the next step."""
        ...

    def step(self) -> list[tuple[HandleT, Output]]:
        """Compute one step of all running texts."""
        ...

    def statistics(self) -> object:
        """Report the current state and counts since the start."""
        ...
