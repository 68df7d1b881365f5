"""Objects in the answers of OpenAI's API."""

from collections.abc import Mapping
from typing import TypedDict

__all__ = [
    "ChatChoice",
    "ChatLogprobs",
    "ChatToken",
    "ChunkChoice",
    "CompletionChoice",
    "Head",
    "TextLogprobs",
    "TokenObject",
]


class Head(TypedDict):
    """The beginning of every answer and every chunk."""

    id: str
    created: int
    model: str
    system_fingerprint: None


class TokenObject(TypedDict):
    """A token and its log probability; `id` is ours, as llama-server has it."""

    id: int
    token: str
    logprob: float
    bytes: list[int]


class ChatToken(TokenObject):
    """A token of an answer, and its likeliest alternatives."""

    top_logprobs: list[TokenObject]


class ChatLogprobs(TypedDict):
    """Log probabilities of an answer in a chat."""

    content: list[ChatToken]
    refusal: None


class TextLogprobs(TypedDict):
    """Log probabilities of a completion, token by token; `token_ids` is ours."""

    tokens: list[str]
    token_ids: list[int]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class ChatChoice(TypedDict):
    """An answer in a chat."""

    index: int
    message: Mapping[str, object]
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChunkChoice(TypedDict):
    """An addition to an answer in a chat."""

    index: int
    delta: Mapping[str, object]
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class CompletionChoice(TypedDict):
    """A completion, or an addition to one."""

    text: str
    index: int
    logprobs: TextLogprobs | None
    finish_reason: str | None
