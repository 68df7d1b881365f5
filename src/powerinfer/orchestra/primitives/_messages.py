"""Messages to workers, and how much of a text goes into one."""

from powerinfer.orchestra.primitives.primitive import Asking, Call, PrimitiveError

__all__ = ["clip", "model_of", "with_inputs"]

LONGEST_INPUT = 8_000
"""Characters of one earlier result in a message."""


def clip(text: str, most: int) -> str:
    """Return a text of at most about `most` characters: its two ends if it is longer."""
    if len(text) <= most:
        return text
    head = most * 2 // 3
    tail = most - head
    left_out = len(text) - most
    return f"{text[:head]}\n[{left_out:,} characters left out]\n{text[len(text) - tail :]}"


def with_inputs(call: Call) -> str:
    """Return the query, after the results of the subtasks that it depends on."""
    if not call.inputs:
        return call.query
    results = [
        f"Result of subtask {subtask}:\n{clip(text, LONGEST_INPUT)}"
        for subtask, text in sorted(call.inputs.items())
    ]
    return "\n\n".join((*results, f"Task: {call.query}"))


def model_of(call: Call, name: str) -> Asking:
    """Return the model of a call.

    Raises:
        PrimitiveError: its worker is none.
    """
    if call.ask is None:
        raise PrimitiveError(f"{name} needs a worker that is a model; this one is a tool")
    return call.ask
