"""Which replica computed the beginning of a prompt: the same one for prompts that begin alike."""

import hashlib
import json
from collections.abc import Iterable, Iterator

__all__ = ["preferred", "prefix_key"]

_CHARACTERS = 512


def prefix_key(body: bytes) -> str | None:
    """Names what a prompt begins with; None if there is no prompt in the body.

    Of a chat it is the beginning up to the first message of the user, at most: later turns of a
    conversation go where the earlier ones went, and so do conversations with one long system
    prompt.
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
    """The parts of a prompt that all its continuations share, in order."""
    if "prompt" in value:
        yield value["prompt"]
    # Tools stand before the messages in most templates.
    for name in ("system", "tools"):
        if value.get(name):
            yield value[name]
    messages = value.get("messages")
    for message in messages if isinstance(messages, list) else ():
        yield message
        if isinstance(message, dict) and message.get("role") == "user":
            return


def preferred(key: str, replicas: Iterable[str]) -> list[str]:
    """All replicas, the one for a key first (rendezvous hashing).

    If one comes or goes, only the keys that it gets or had change their place.
    """
    return sorted(replicas, key=lambda each: hashlib.sha256(f"{key} {each}".encode()).digest())
