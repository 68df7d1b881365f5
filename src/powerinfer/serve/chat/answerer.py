"""Who may answer chats in place of a model: something above the server that uses its models."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from powerinfer.serve.chat.deltas import ChatDelta
from powerinfer.serve.chat.messages import ChatMessage

__all__ = ["Answerer", "TokenCounts"]


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens that an answer took, all steps together."""

    prompt: int
    generated: int


class Answerer(Protocol):
    """Answers chats. `ServerContext.answerers` lists it under the name that clients use."""

    def answer(
        self, messages: Sequence[ChatMessage]
    ) -> AsyncGenerator[ChatDelta | TokenCounts, None]:
        """Yield the pieces of an answer, reasoning before content, then the counts.

        Raises:
            ApiError: there is no answer.
        """
        ...
