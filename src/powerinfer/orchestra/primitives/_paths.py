"""Dotted paths into JSON: `order.items[0].price`, `$.names["of all"]`, `items[*].price`, `-1`."""

import json
import re
from dataclasses import dataclass

from powerinfer.orchestra.primitives.primitive import PrimitiveError
from powerinfer.values import JSON

__all__ = ["EVERY", "Path", "Step", "follow", "path_at_start", "schema_of"]

EVERY = "*"
Step = int | str
"""A key, an index, or `EVERY` element."""

_STEP = re.compile(
    r"""\.?(?P<key>[^\W\d][\w-]{0,99})|\[(?P<index>-?\d{1,9})\]|\.(?P<number>\d{1,9})(?!\w)"""
    r"""|\[(?P<every>\*)\]|\[(?P<quoted>"[^"\\]{0,99}"|'[^'\\]{0,99}')\]"""
)
_MOST_STEPS = 32


@dataclass(frozen=True)
class Path:
    """A path, and what of the text comes after it."""

    steps: tuple[Step, ...]
    rest: str


def path_at_start(text: str) -> Path | None:
    """Read the path with which a text begins, in quotes or backticks too; None if there is none."""
    text = text.lstrip(" \t\r\n`'\"").removeprefix("$")
    steps: list[Step] = []
    position = 0
    while (found := _STEP.match(text, position)) and len(steps) < _MOST_STEPS:
        # Only a dot joins a key to what is before it.
        if found["key"] and steps and text[position] != ".":
            break
        steps.append(_step(found))
        position = found.end()
    rest = text[position:].lstrip("`'\"")
    is_whole = bool(steps) and (not rest or rest[0].isspace() or rest[0] == ":")
    return Path(tuple(steps), rest.rstrip()) if is_whole else None


def _step(found: re.Match[str]) -> Step:
    if found["index"] or found["number"]:
        return int(found["index"] or found["number"])
    if found["quoted"]:
        return found["quoted"][1:-1]
    return found["every"] or found["key"]


def follow(value: JSON, steps: tuple[Step, ...]) -> JSON:
    """Return what a path leads to.

    Raises:
        PrimitiveError: it leads nowhere; the message says where it ends and what is there.
    """
    for number, step in enumerate(steps):
        if step == EVERY and isinstance(value, list):
            return [follow(item, steps[number + 1 :]) for item in value]
        if isinstance(value, dict) and str(step) in value:
            value = value[str(step)]
        elif isinstance(value, list) and isinstance(step, int) and -len(value) <= step < len(value):
            value = value[step]
        else:
            raise PrimitiveError(f"no {step!r} in {_described(value)}")
    return value


def _described(value: JSON) -> str:
    if isinstance(value, dict):
        keys = ", ".join(list(value)[:12])
        return f"the object with the keys {keys[:200]}" if value else "an empty object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return f"the value {json.dumps(value)[:80]}"


def schema_of(steps: tuple[Step, ...]) -> dict[str, object]:
    """Build the JSON schema of a smallest value in which a path leads to a plain value."""
    if not steps:
        return {"type": ["string", "number", "boolean", "null"]}
    first, inner = steps[0], schema_of(steps[1:])
    if isinstance(first, str) and first != EVERY:
        return {
            "type": "object",
            "properties": {first: inner},
            "required": [first],
            "additionalProperties": False,
        }
    least = 1 if first == EVERY else max(first + 1, -first) if isinstance(first, int) else 1
    return {"type": "array", "items": inner, "minItems": min(least, 32)}
