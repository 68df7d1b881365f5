"""`/v1/responses`: answers to items, whole or as numbered events."""

import json
import secrets
import time

from powerinfer.engine.request import Output
from powerinfer.errors import PowerInferError, PromptError
from powerinfer.sampling.finish_reason import FinishReason
from powerinfer.serve.chat.deltas import ChatOutputParser
from powerinfer.serve.chat.plan import plan_chat
from powerinfer.serve.errors import ApiError, from_engine
from powerinfer.serve.openai.streams import Streams, opened
from powerinfer.serve.responding import Reply
from powerinfer.serve.responses.output import Event, OutputItems
from powerinfer.serve.responses.request import ResponsesRequest
from powerinfer.serve.responses.store import ResponseStore, StoredResponse
from powerinfer.serve.served_model import ModelContext

__all__ = ["ResponsesAnswer"]


class ResponsesAnswer:
    """The answer to one request."""

    def __init__(
        self, context: ModelContext, asked: ResponsesRequest, store: ResponseStore
    ) -> None:
        self._context = context
        self._asked = asked
        self._store = store
        self._id = f"resp_{secrets.token_hex(24)}"
        self._created_at = int(time.time())
        self._items = OutputItems()
        self._status = "in_progress"
        self._num_reasoning = 0
        self._num_events = 0

    async def __call__(self, reply: Reply) -> None:
        """Generate and send the answer."""
        context, chat = self._context, self._asked.chat
        try:
            plan = await context.run_blocking(plan_chat, context, chat)
        except PromptError as error:
            raise from_engine(error, "input") from None
        request = plan.request(shares_answers=context.settings.reuses_answers)
        parser = plan.new_parser()
        form_field = "text.format" if chat.params.has_form else None
        async with opened(
            context, [request], prompt_field="input", form_field=form_field
        ) as streams:
            if self._asked.is_streamed:
                await self._stream(reply, streams, parser)
            else:
                async for _, output in streams.outputs():
                    self._read(output, parser)
                await reply.json(await self._ended(streams))

    async def _stream(self, reply: Reply, streams: Streams, parser: ChatOutputParser) -> None:
        for name in ("created", "in_progress"):
            await self._send(reply, (name, {"response": self._response(None)}))
        try:
            async for _, output in streams.outputs():
                for event in self._read(output, parser):
                    await self._send(reply, event)
        except (ApiError, PowerInferError) as error:
            # An event of the error itself follows, for clients that know no other.
            self._status = "failed"
            failed = self._response(streams) | {
                "error": {"code": "server_error", "message": error.message or str(error)}
            }
            await self._send(reply, ("failed", {"response": failed}))
            raise
        response = await self._ended(streams)
        await self._send(reply, (self._status, {"response": response}))
        await reply.end()

    async def _send(self, reply: Reply, event: Event) -> None:
        name = f"response.{event[0]}"
        await reply.event({"type": name, "sequence_number": self._num_events, **event[1]}, name)
        self._num_events += 1

    def _read(self, output: Output, parser: ChatOutputParser) -> list[Event]:
        """Add an output to the answer; returns the events that report it."""
        deltas = parser.push(output.text) if output.text else []
        if output.is_last:
            deltas = [*deltas, *parser.finish()]
        events = list(self._items.add(deltas))
        if self._items.is_reasoning:
            self._num_reasoning += len(output.token_ids)
        if output.is_last:
            is_cut = output.finish_reason is FinishReason.LENGTH
            self._status = "incomplete" if is_cut else "completed"
            events += self._items.finish(self._status)
        return events

    async def _ended(self, streams: Streams) -> dict[str, object]:
        """Build the response, and keep it if that is wanted."""
        response = self._response(streams)
        if self._asked.is_stored:
            output = self._items.as_json()
            kept = [self._asked.items, response]
            num_bytes = await self._context.run_blocking(lambda: len(json.dumps(kept)))
            stored = StoredResponse(
                response=response, items=self._asked.items, output=output, num_bytes=num_bytes
            )
            self._store.put(self._id, stored)
        return response

    def _response(self, streams: Streams | None) -> dict[str, object]:
        """Build the object of the response so far; its usage is known at the end."""
        is_complete, is_cut = self._status == "completed", self._status == "incomplete"
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created_at,
            "completed_at": int(time.time()) if is_complete else None,
            "status": self._status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": self._items.as_json(),
            "usage": None if streams is None else self._usage(streams),
            **self._asked.settings,
        }

    def _usage(self, streams: Streams) -> dict[str, object]:
        return {
            "input_tokens": streams.num_prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": streams.num_cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": streams.num_tokens,
            "output_tokens_details": {"reasoning_tokens": self._num_reasoning},
            "total_tokens": streams.num_prompt_tokens + streams.num_tokens,
        }
