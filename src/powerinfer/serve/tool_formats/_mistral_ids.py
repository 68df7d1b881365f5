"""Call ids that Mistral's templates accept: nine letters and digits."""

import hashlib
from collections.abc import Sequence

from powerinfer.serve.chat.messages import ChatMessage

__all__ = ["with_short_ids"]

_LENGTH = 9


def with_short_ids(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Shorten all ids, so that equal ids stay equal; short ones are kept."""
    return [_shortened(message) for message in messages]


def _shortened(message: ChatMessage) -> ChatMessage:
    short = message.copy()
    if "tool_call_id" in short:
        short["tool_call_id"] = _short(short["tool_call_id"])
    if "tool_calls" in short:
        short["tool_calls"] = [{**call, "id": _short(call["id"])} for call in short["tool_calls"]]
    return short


def _short(call_id: str) -> str:
    if len(call_id) == _LENGTH and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:_LENGTH]
