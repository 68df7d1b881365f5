"""Ids of calls as Mistral's templates accept them: nine letters and digits."""

import hashlib
from collections.abc import Mapping, Sequence

__all__ = ["with_short_ids"]

_LENGTH = 9


def with_short_ids(messages: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Messages in which equal ids are equal again; those that fit stay as they are."""
    return [_shortened(message) for message in messages]


def _shortened(message: Mapping[str, object]) -> dict[str, object]:
    short = dict(message)
    if "tool_call_id" in short:
        short["tool_call_id"] = _short(short["tool_call_id"])
    calls = short.get("tool_calls")
    if isinstance(calls, list):
        short["tool_calls"] = [{**call, "id": _short(call.get("id"))} for call in calls]
    return short


def _short(call_id: object) -> str:
    text = str(call_id)
    if len(text) == _LENGTH and text.isascii() and text.isalnum():
        return text
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:_LENGTH]
