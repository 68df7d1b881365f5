"""Answers that take time: computed while the client is connected, sent whole or as events."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from powerinfer.errors import PowerInferError
from powerinfer.serve.bodies import read_object
from powerinfer.serve.context import ServerContext
from powerinfer.serve.errors import ApiError, ErrorBody, from_engine
from powerinfer.serve.served_model import ModelContext
from powerinfer.values import JSONObject

__all__ = ["SEND_PART", "Reply", "answer", "answer_body", "answer_with"]

T = TypeVar("T")

SEND_PART = "powerinfer.send_part"
"""Name in an ASGI scope's `state` of a shorter way to the client, where the server has one."""

SendPart = Callable[[bytes], Awaitable[None]]
"""Sends a part of a body, that is not empty, once the answer's head was sent."""

# Made once: `json.dumps` would make one for every token.
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
# Proxies must not buffer streams.
_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_EVENT_HEADERS = {"content-type": "text/event-stream; charset=utf-8", **_STREAM_HEADERS}
_LINE_HEADERS = {"content-type": "application/x-ndjson", **_STREAM_HEADERS}


class Reply:
    """Sends an answer: one JSON object, events, or lines of JSON.

    Attributes:
        is_started: the status was sent, so that an error must be an event or a line.
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self._send_part: SendPart | None = scope.get("state", {}).get(SEND_PART)
        self._has_lines = False
        self.is_started = False

    async def json(self, value: Mapping[str, object] | Sequence[object]) -> None:
        """Send a whole answer."""
        await self.encoded(_dump(value))

    async def encoded(self, body: bytes) -> None:
        """Send a whole answer that is JSON already."""
        await self._start({"content-type": "application/json"})
        await self._write(body, more=False)

    async def start_events(self) -> None:
        """Send the head of an event stream before its first event."""
        await self._start(_EVENT_HEADERS)

    async def event(self, data: Mapping[str, object] | str, name: str | None = None) -> None:
        """Send an object, or a text without line ends, as an event; the first starts the answer."""
        if not self.is_started:
            await self.start_events()
        text = data.encode() if isinstance(data, str) else _dump(data)
        head = b"" if name is None else b"event: " + name.encode() + b"\n"
        await self._write(head + b"data: " + text + b"\n\n", more=True)

    async def line(self, data: Mapping[str, object]) -> None:
        """Send an object as a line of JSON; the first one starts the answer."""
        if not self.is_started:
            self._has_lines = True
            await self._start(_LINE_HEADERS)
        await self._write(_dump(data) + b"\n", more=True)

    async def error(self, data: Mapping[str, object], name: str | None) -> None:
        """End a stream that has begun with an error: a line, or an event of this name."""
        await (self.line(data) if self._has_lines else self.event(data, name))
        await self.end()

    async def end(self) -> None:
        """End a stream."""
        await self._write(b"", more=False)

    async def _start(self, headers: Mapping[str, str]) -> None:
        self.is_started = True
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": pairs})

    async def _write(self, body: bytes, *, more: bool) -> None:
        if more and self._send_part is not None:
            await self._send_part(body)
            return
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


async def answer(
    request: Request,
    context: ServerContext,
    read: Callable[[JSONObject, ModelContext], T],
    begin: Callable[[ModelContext, T], Callable[[Reply], Awaitable[None]]],
    *,
    error_event: str | None = None,
) -> Response:
    """Read a body, then check and answer it with its model in one of the server's places.

    Args:
        read: checks the body; called in the pool.
        begin: takes what `read` returns; its result writes the answer and ends a stream of events.
        error_event: name of the event for an error.
    """
    body = await read_object(request, context)
    return answer_body(body, context, read, begin, error_event=error_event)


def answer_body(
    body: JSONObject,
    context: ServerContext,
    read: Callable[[JSONObject, ModelContext], T],
    begin: Callable[[ModelContext, T], Callable[[Reply], Awaitable[None]]],
    *,
    error_event: str | None = None,
) -> Response:
    """Check and answer a body that was read; the arguments are those of `answer`."""

    async def work(reply: Reply) -> None:
        async with context.model_of(body) as model:
            await begin(model, await context.run_blocking(read, body, model))(reply)

    return answer_with(work, context, error_event=error_event)


def answer_with(
    work: Callable[[Reply], Awaitable[None]],
    context: ServerContext,
    *,
    error_event: str | None = None,
) -> Response:
    """Answer by work of any kind, without a model of its own; see `answer`."""
    return _Answer(context, work, error_event)


class _Answer(Response):
    """Does the work of a request in one of the server's places, within the time limit.

    The work is cancelled when the client disconnects. An error that it raises becomes the answer,
    or the last event of an answer that has begun.
    """

    def __init__(
        self,
        context: ServerContext,
        work: Callable[[Reply], Awaitable[None]],
        error_event: str | None,
    ) -> None:
        self._context = context
        self._work = work
        self._error_event = error_event
        # FastAPI reads these attributes of a response.
        self.status_code = 200
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, unless the client disconnects."""
        body = self._context.error_body(scope["path"])
        working = asyncio.create_task(self._answer(Reply(scope, send), body))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            was_done = working.done()
            for task in (working, leaving):
                task.cancel()
            results = await asyncio.gather(working, leaving, return_exceptions=True)
        if was_done and isinstance(results[0], BaseException):
            raise results[0]

    async def _answer(self, reply: Reply, body: ErrorBody) -> None:
        try:
            with self._context.place():
                await self._within_time(reply)
        except (ApiError, PowerInferError) as error:
            if not reply.is_started:
                raise
            worded = from_engine(error) if isinstance(error, PowerInferError) else error
            await reply.error(body(worded), self._error_event)

    async def _within_time(self, reply: Reply) -> None:
        limit = self._context.settings.request_timeout_s
        try:
            async with asyncio.timeout(limit):
                await self._work(reply)
        except TimeoutError:
            raise ApiError(
                f"the answer took longer than {limit or 0:g} s",
                status=504,
                code="timeout",
                # Another attempt would take as long.
                headers={"x-should-retry": "false"},
            ) from None


async def _left(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _dump(value: Mapping[str, object] | Sequence[object]) -> bytes:
    return _ENCODER.encode(value).encode("utf-8", "replace")
