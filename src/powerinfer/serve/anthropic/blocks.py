"""The blocks of an answer: text, thoughts, uses of tools."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from powerinfer.serve.chat.deltas import ChatDelta

__all__ = ["BlockEvent", "Blocks"]


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """One event of a stream: its name, which is its type too, and what it says."""

    name: str
    values: Mapping[str, Any]


class Blocks:
    """Puts what is read of an answer into blocks, one after the other."""

    def __init__(self) -> None:
        self._written: list[dict[str, Any]] = []
        self._kind: object = None

    @property
    def has_calls(self) -> bool:
        """A tool is used."""
        return any(block["type"] == "tool_use" for block in self._written)

    def add(self, deltas: Sequence[ChatDelta]) -> Iterator[BlockEvent]:
        """Add to the answer; yields the events that say so."""
        for delta in deltas:
            kind, text = _kind_and_text(delta)
            if kind != self._kind:
                yield from self.close()
                yield self._open(delta, kind)
            if text:
                yield self._go_on(text)

    def close(self) -> Iterator[BlockEvent]:
        """End the block that is open, if there is one."""
        if self._kind is None:
            return
        self._kind = None
        index = len(self._written) - 1
        if self._written[-1]["type"] == "thinking":
            delta = {"type": "signature_delta", "signature": ""}
            yield BlockEvent("content_block_delta", {"index": index, "delta": delta})
        yield BlockEvent("content_block_stop", {"index": index})

    def content(self) -> list[dict[str, Any]]:
        """All blocks, whole."""
        return [_whole(block) for block in self._written]

    def _open(self, delta: ChatDelta, kind: object) -> BlockEvent:
        self._kind = kind
        call = delta.tool_call
        block: dict[str, Any]
        if call is not None:
            block = {"type": "tool_use", "id": call.id or "", "name": call.name or "", "input": {}}
            self._written.append({**block, "input": ""})
        elif delta.reasoning:
            block = {"type": "thinking", "thinking": "", "signature": ""}
            self._written.append(dict(block))
        else:
            block = {"type": "text", "text": ""}
            self._written.append(dict(block))
        values = {"index": len(self._written) - 1, "content_block": block}
        return BlockEvent("content_block_start", values)

    def _go_on(self, text: str) -> BlockEvent:
        block = self._written[-1]
        kind, key = {
            "tool_use": ("input_json_delta", "partial_json"),
            "thinking": ("thinking_delta", "thinking"),
            "text": ("text_delta", "text"),
        }[block["type"]]
        block["input" if key == "partial_json" else key] += text
        delta = {"type": kind, key: text}
        values = {"index": len(self._written) - 1, "delta": delta}
        return BlockEvent("content_block_delta", values)


def _kind_and_text(delta: ChatDelta) -> tuple[object, str]:
    """What tells the block of a delta from others, and what the delta adds to it."""
    if delta.tool_call is not None:
        return delta.tool_call.index, delta.tool_call.arguments
    if delta.reasoning:
        return "thinking", delta.reasoning
    return "text", delta.content


def _whole(block: dict[str, Any]) -> dict[str, Any]:
    if block["type"] != "tool_use":
        return block
    try:
        arguments = json.loads(block["input"])
    except (ValueError, RecursionError):
        # The answer was cut off within them.
        arguments = {}
    return {**block, "input": arguments if isinstance(arguments, dict) else {}}
