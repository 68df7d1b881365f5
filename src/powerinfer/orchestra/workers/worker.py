"""What a worker is: it gets messages and gives a text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from powerinfer.errors import PowerInferError

__all__ = ["Answer", "Question", "Worker", "WorkerError"]


class WorkerError(PowerInferError):
    """A worker cannot answer; the message is one line and contains no secret.

    Attributes:
        is_too_long: the messages are longer than its context.
    """

    def __init__(self, message: str, *, is_too_long: bool = False) -> None:
        super().__init__(message)
        self.is_too_long = is_too_long


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Messages for a worker.

    Attributes:
        messages: each with `role` and `content`; contents stay text, whatever they contain.
        prefill: beginning of the answer.
        grammar: that the answer follows; for models of this machine only.
        json_schema: that the answer follows, if there is no grammar.
    """

    messages: Sequence[Mapping[str, str]]
    max_tokens: int = 512
    prefill: str = ""
    grammar: str | None = None
    json_schema: Mapping[str, object] | None = None
    temperature: float = 0.0
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a worker said, and what that took.

    Attributes:
        prompt_tokens: those in a cache included.
        is_cut: the limit of tokens, or the end of the context, ended it.
    """

    text: str
    prompt_tokens: int = 0
    tokens: int = 0
    is_cut: bool = False


class Worker(Protocol):
    """Answers questions, several at once."""

    async def answer(self, question: Question) -> Answer:
        """Answer a question.

        Raises:
            WorkerError: it cannot.
        """
        ...
