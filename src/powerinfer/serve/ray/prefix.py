"""Assigns prompts to replicas by their beginning, so that prefixes are found in caches."""

import hashlib
import json
from collections.abc import Iterable, Iterator

__all__ = ["preferred", "prefix_key"]

_CHARACTERS = 512


def prefix_key(body: bytes) -> str | None:
    """Hash the beginning of a prompt; None if there is no prompt in the body.

    The beginning of a chat ends with the first message of the user, at most: later turns of a
    conversation go to the same replica, and so do conversations with one long system prompt.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    text = ""
    for part in _beginning(value):
        text += json.dumps(part, sort_keys=True)[: _CHARACTERS - len(text)]
        if len(text) >= _CHARACTERS:
            break
    return hashlib.sha256(text.encode()).hexdigest() if text else None


def _beginning(value: dict[str, object]) -> Iterator[object]:
    """Yield the parts of a prompt that all its continuations share, in order."""
    if "prompt" in value:
        yield value["prompt"]
    # Most templates write tools before the messages.
    for name in ("system", "tools"):
        if value.get(name):
            yield value[name]
    messages = value.get("messages")
    for message in messages if isinstance(messages, list) else ():
        yield message
        if isinstance(message, dict) and message.get("role") == "user":
            return


def preferred(key: str, replicas: Iterable[str]) -> list[str]:
    """Order the replicas by rendezvous hashing: the first one is the key's own.

    If a replica comes or goes, only its own keys move.
    """
    return sorted(replicas, key=lambda each: hashlib.sha256(f"{key} {each}".encode()).digest())
