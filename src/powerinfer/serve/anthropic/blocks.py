"""Content blocks of an answer: text, thinking and tool use."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from powerinfer.serve.chat.deltas import ChatDelta, ToolCallDelta

__all__ = ["BlockEvent", "Blocks"]

_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""By type of block, the type of its deltas and the name of their text."""


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """An event of a stream: its name, which is also its type, and the other fields."""

    name: str
    values: Mapping[str, object]


@dataclass(slots=True)
class _Block:
    """A block that may still grow.

    Attributes:
        call: first piece of the call in a block of tool use; None in other blocks.
        text: text, reasoning, or the JSON of a tool's input.
    """

    type: str
    call: ToolCallDelta | None
    text: str = ""

    def as_json(self) -> dict[str, object]:
        """Build the block's object of the API."""
        if self.call is not None:
            given = _input(self.text)
            return {"type": self.type, "id": self.call.id, "name": self.call.name, "input": given}
        if self.type == "thinking":
            return {"type": self.type, "thinking": self.text, "signature": ""}
        return {"type": self.type, "text": self.text}

    def holds(self, delta: ChatDelta) -> bool:
        """Return whether a delta continues this block."""
        if self.call is not None and delta.tool_call is not None:
            return self.call.index == delta.tool_call.index
        return self.type == _type(delta)


class Blocks:
    """Collects the pieces of an answer into consecutive blocks."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._is_open = False

    @property
    def has_calls(self) -> bool:
        """The answer uses a tool."""
        return any(block.call is not None for block in self._blocks)

    def add(self, deltas: Sequence[ChatDelta]) -> Iterator[BlockEvent]:
        """Add pieces of the answer; yields the events that report them."""
        for delta in deltas:
            if not self._is_open or not self._blocks[-1].holds(delta):
                yield from self.close()
                yield self._open(delta)
            arguments = "" if delta.tool_call is None else delta.tool_call.arguments
            if text := arguments or delta.reasoning or delta.content:
                yield self._go_on(text)

    def close(self) -> Iterator[BlockEvent]:
        """End the open block, if there is one."""
        if not self._is_open:
            return
        self._is_open = False
        if self._blocks[-1].type == "thinking":
            yield self._event("delta", delta={"type": "signature_delta", "signature": ""})
        yield self._event("stop")

    def content(self) -> list[dict[str, object]]:
        """Build the objects of all blocks."""
        return [block.as_json() for block in self._blocks]

    def _open(self, delta: ChatDelta) -> BlockEvent:
        self._is_open = True
        self._blocks.append(_Block(_type(delta), delta.tool_call))
        return self._event("start", content_block=self._blocks[-1].as_json())

    def _go_on(self, text: str) -> BlockEvent:
        block = self._blocks[-1]
        block.text += text
        kind, name = _DELTAS[block.type]
        return self._event("delta", delta={"type": kind, name: text})

    def _event(self, name: str, **values: object) -> BlockEvent:
        index = len(self._blocks) - 1
        return BlockEvent(f"content_block_{name}", {"index": index, **values})


def _type(delta: ChatDelta) -> str:
    if delta.tool_call is not None:
        return "tool_use"
    return "thinking" if delta.reasoning else "text"


def _input(text: str) -> dict[str, object]:
    """Parse the input of a tool; an incomplete one becomes an empty object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
