"""`/v1/messages`: answers to messages, whole or as named events."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import TypeVar

from powerinfer.engine.request import Output, Request
from powerinfer.sampling.finish_reason import FinishReason
from powerinfer.serve.anthropic.blocks import BlockEvent, Blocks
from powerinfer.serve.anthropic.request import MessagesRequest
from powerinfer.serve.chat.deltas import ChatOutputParser
from powerinfer.serve.chat.plan import plan_chat
from powerinfer.serve.context import ServerContext
from powerinfer.serve.openai.streams import Streams, opened
from powerinfer.serve.responding import Reply

__all__ = ["MessagesAnswer"]

T = TypeVar("T")

# Silence after which clients get a ping.
_PING_S = 10.0


class MessagesAnswer:
    """The answer to one request."""

    def __init__(self, context: ServerContext, asked: MessagesRequest) -> None:
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
        request = Request(
            prompt_ids=plan.prompt_ids,
            params=plan.params,
            shares_answers=context.settings.reuses_answers,
        )
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
            for event in self._read(item[1], parser):
                await _send(reply, event.name, event.values)
        end = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        await _send(reply, "message_delta", {"delta": end, "usage": _usage(streams)})
        await _send(reply, "message_stop", {})
        await reply.end()

    def _read(self, output: Output, parser: ChatOutputParser) -> list[BlockEvent]:
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
    waiting: asyncio.Future[T] | None = None
    try:
        while True:
            if waiting is None:
                waiting = asyncio.ensure_future(anext(items))
            await asyncio.wait((waiting,), timeout=seconds)
            if not waiting.done():
                yield None
                continue
            try:
                item = waiting.result()
            except StopAsyncIteration:
                return
            finally:
                waiting = None
            yield item
    finally:
        if waiting is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
