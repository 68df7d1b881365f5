"""`/v1/messages`: answers to messages, whole or as named events."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from powerinfer.engine.request import Output
from powerinfer.sampling.finish_reason import FinishReason
from powerinfer.serve.anthropic.request import MessagesRequest
from powerinfer.serve.chat.deltas import ChatDelta, ChatOutputParser, ToolCallDelta
from powerinfer.serve.chat.plan import plan_chat
from powerinfer.serve.openai.streams import Streams, opened
from powerinfer.serve.responding import Reply
from powerinfer.serve.served_model import ModelContext

__all__ = ["MessagesAnswer"]

_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""By type of block, the type of its deltas and the name of their text."""

T = TypeVar("T")
Event: TypeAlias = tuple[str, Mapping[str, object]]
"""An event of a stream: its name, which is also its type, and the other fields."""

# Silence after which clients get a ping.
_PING_S = 10.0


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

    def add(self, deltas: Sequence[ChatDelta]) -> Iterator[Event]:
        """Add pieces of the answer; yields the events that report them."""
        for delta in deltas:
            if not self._is_open or not self._blocks[-1].holds(delta):
                yield from self.close()
                yield self._open(delta)
            arguments = "" if delta.tool_call is None else delta.tool_call.arguments
            if text := arguments or delta.reasoning or delta.content:
                yield self._go_on(text)

    def close(self) -> Iterator[Event]:
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

    def _open(self, delta: ChatDelta) -> Event:
        self._is_open = True
        self._blocks.append(_Block(_type(delta), delta.tool_call))
        return self._event("start", content_block=self._blocks[-1].as_json())

    def _go_on(self, text: str) -> Event:
        block = self._blocks[-1]
        block.text += text
        kind, name = _DELTAS[block.type]
        return self._event("delta", delta={"type": kind, name: text})

    def _event(self, name: str, **values: object) -> Event:
        index = len(self._blocks) - 1
        return f"content_block_{name}", {"index": index, **values}


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


class MessagesAnswer:
    """The answer to one request."""

    def __init__(self, context: ModelContext, asked: MessagesRequest) -> None:
        self._context = context
        self._asked = asked
        self._id = f"msg_{secrets.token_hex(12)}"
        self._blocks = Blocks()
        self._stop_reason: str | None = None
        self._stop_sequence: str | None = None

    async def __call__(self, reply: Reply) -> None:
        """Generate and send the answer."""
        context = self._context
        plan = await context.run_blocking(plan_chat, context, self._asked.chat)
        request = plan.request(shares_answers=context.settings.reuses_answers)
        parser = plan.new_parser()
        async with opened(context, [request]) as streams:
            if self._asked.is_streamed:
                await self._stream(reply, streams, parser)
            else:
                async for _, output in streams.outputs():
                    self._read(output, parser)
                await reply.json(self._message(streams))

    async def _stream(self, reply: Reply, streams: Streams, parser: ChatOutputParser) -> None:
        await _send(reply, "message_start", {"message": self._message(streams)})
        await _send(reply, "ping", {})
        async for item in or_pause(streams.outputs(), _PING_S):
            if item is None:
                await _send(reply, "ping", {})
                continue
            for name, values in self._read(item[1], parser):
                await _send(reply, name, values)
        end = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        await _send(reply, "message_delta", {"delta": end, "usage": _usage(streams)})
        await _send(reply, "message_stop", {})
        await reply.end()

    def _read(self, output: Output, parser: ChatOutputParser) -> list[Event]:
        """Add an output to the answer; returns the events that report it."""
        deltas = parser.push(output.text) if output.text else []
        if not output.is_last:
            return list(self._blocks.add(deltas))
        events = [*self._blocks.add([*deltas, *parser.finish()]), *self._blocks.close()]
        if output.stop in self._asked.stop_sequences:
            self._stop_reason, self._stop_sequence = "stop_sequence", output.stop
        elif output.finish_reason is FinishReason.LENGTH:
            self._stop_reason = "max_tokens"
        else:
            self._stop_reason = "tool_use" if self._blocks.has_calls else "end_turn"
        return events

    def _message(self, streams: Streams) -> dict[str, object]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._asked.model,
            "content": self._blocks.content(),
            "stop_reason": self._stop_reason,
            "stop_sequence": self._stop_sequence,
            "usage": _usage(streams),
        }


async def _send(reply: Reply, name: str, values: Mapping[str, object]) -> None:
    await reply.event({"type": name, **values}, name)


def _usage(streams: Streams) -> dict[str, int]:
    """Count tokens; cached tokens of the prompt are counted apart from its other tokens."""
    return {
        "input_tokens": streams.num_prompt_tokens - streams.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": streams.num_cached_tokens,
        "output_tokens": streams.num_tokens,
    }


async def or_pause(items: AsyncIterator[T], seconds: float) -> AsyncIterator[T | None]:
    """Yield the items of a stream, and None after every `seconds` of silence."""
    waiting = asyncio.ensure_future(anext(items))
    try:
        while True:
            await asyncio.wait((waiting,), timeout=seconds)
            if not waiting.done():
                yield None
                continue
            try:
                item = waiting.result()
            except StopAsyncIteration:
                return
            waiting = asyncio.ensure_future(anext(items))
            yield item
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
