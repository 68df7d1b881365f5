"""Items of a response's output, and the events that tell how they grow."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from powerinfer.serve.chat.deltas import ChatDelta, ToolCallDelta
from powerinfer.values import JSONObject

__all__ = ["Event", "OutputItems"]

Event: TypeAlias = tuple[str, Mapping[str, object]]
"""An event of a stream: its type without `response.`, and its other fields but the number."""

_PREFIXES = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_"}
_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}


@dataclass(slots=True)
class _Item:
    """An item that may still grow.

    Attributes:
        call: first piece of the call in a function call; None in other items.
        text: text, reasoning, or the JSON of a call's arguments.
    """

    type: str
    id: str
    call: ToolCallDelta | None
    text: str = ""
    status: str = "in_progress"

    @property
    def part(self) -> JSONObject:
        """The only part of its content."""
        part: JSONObject = {"type": _PARTS[self.type], "text": self.text}
        return part if self.type == "reasoning" else {**part, "annotations": [], "logprobs": []}

    def as_json(self) -> JSONObject:
        """Build the item's object of the API."""
        head: JSONObject = {"id": self.id, "type": self.type, "status": self.status}
        if self.call is not None:
            call = self.call
            return head | {"call_id": call.id, "name": call.name, "arguments": self.text}
        head["content"] = [] if self.status == "in_progress" else [self.part]
        more: JSONObject = {"summary": []} if self.type == "reasoning" else {"role": "assistant"}
        return head | more

    def holds(self, delta: ChatDelta) -> bool:
        """Return whether a delta continues this item."""
        if self.call is not None and delta.tool_call is not None:
            return self.call.index == delta.tool_call.index
        return self.type == _type(delta)


class OutputItems:
    """Collects the pieces of an answer into consecutive items."""

    def __init__(self) -> None:
        self._items: list[_Item] = []

    @property
    def is_reasoning(self) -> bool:
        """The item that grows is reasoning."""
        return self._is_open and self._items[-1].type == "reasoning"

    def add(self, deltas: Sequence[ChatDelta]) -> Iterator[Event]:
        """Add pieces of the answer; yields the events that report them."""
        for delta in deltas:
            if not self._is_open or not self._items[-1].holds(delta):
                yield from self._close("completed")
                yield from self._open(_type(delta), delta.tool_call)
            arguments = "" if delta.tool_call is None else delta.tool_call.arguments
            if text := arguments or delta.reasoning or delta.content:
                self._items[-1].text += text
                yield self._event(f"{self._growth}.delta", delta=text)

    def finish(self, status: str) -> Iterator[Event]:
        """End the answer with the status of its last item; one without pieces has an empty text."""
        if not self._items:
            yield from self._open("message", None)
        yield from self._close(status)

    def as_json(self) -> list[JSONObject]:
        """Build the objects of all items."""
        return [item.as_json() for item in self._items]

    @property
    def _is_open(self) -> bool:
        return bool(self._items) and self._items[-1].status == "in_progress"

    @property
    def _growth(self) -> str:
        """Beginning of the types of events that tell how the last item grows."""
        return _PARTS.get(self._items[-1].type, "function_call_arguments")

    def _open(self, kind: str, call: ToolCallDelta | None) -> Iterator[Event]:
        item = _Item(kind, _PREFIXES[kind] + secrets.token_hex(24), call)
        self._items.append(item)
        yield self._of_item("output_item.added")
        if call is None:
            yield self._event("content_part.added", part=item.part)

    def _close(self, status: str) -> Iterator[Event]:
        if not self._is_open:
            return
        item = self._items[-1]
        if item.call is not None:
            more = {"name": item.call.name, "arguments": item.text}
            yield self._event(f"{self._growth}.done", **more)
        else:
            yield self._event(f"{self._growth}.done", text=item.text)
            yield self._event("content_part.done", part=item.part)
        item.status = status
        yield self._of_item("output_item.done")

    def _of_item(self, name: str) -> Event:
        return name, {"output_index": len(self._items) - 1, "item": self._items[-1].as_json()}

    def _event(self, name: str, /, **values: object) -> Event:
        item = self._items[-1]
        place: dict[str, object] = {"item_id": item.id, "output_index": len(self._items) - 1}
        if item.call is None:
            place["content_index"] = 0
        if name.startswith("output_text"):
            place["logprobs"] = []
        return name, place | values


def _type(delta: ChatDelta) -> str:
    if delta.tool_call is not None:
        return "function_call"
    return "reasoning" if delta.reasoning else "message"
