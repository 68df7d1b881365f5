"""Relays a replica's answer, and reports its death: a cut stream must not look complete."""

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.responses import StreamingResponse
from starlette.types import Message

from powerinfer.serve.errors import ApiError, ErrorBody, unavailable

__all__ = ["relay"]

_log = logging.getLogger(__name__)

_EVENTS = b"text/event-stream"
# Most replicas that are asked for one answer.
_ATTEMPTS = 3


async def relay(
    ask: Callable[[], AsyncIterator[Message]],
    error_body: ErrorBody,
    wait: Callable[[], Awaitable[None]],
    lost: tuple[type[BaseException], ...],
) -> StreamingResponse:
    """Ask replicas until one answers, and wait for the first bytes of its answer.

    Args:
        ask: sends the request to a replica, to another one each time.
        error_body: writes errors in the form of the request's path.
        wait: waits before another replica is asked.
        lost: errors that mean that a replica died.

    Raises:
        ApiError: 503, all replicas that were asked died.
    """
    for attempt in range(_ATTEMPTS):
        if attempt:
            await wait()
        messages = ask()
        try:
            # The client gets nothing before there are bytes of the body.
            start = await anext(messages)
            first = await anext(messages)
        except lost as error:
            _log.warning("a replica was lost before it answered: %s", type(error).__name__)
            continue
        headers = [(bytes(name), bytes(value)) for name, value in start["headers"]]
        has_events = any(
            name == b"content-type" and value.startswith(_EVENTS) for name, value in headers
        )
        chunks = _chunks(first, messages, error_body if has_events else None, lost)
        response = StreamingResponse(chunks, start["status"])
        response.raw_headers = headers
        return response
    raise _lost()


async def _chunks(
    first: Message,
    messages: AsyncIterator[Message],
    error_body: ErrorBody | None,
    lost: tuple[type[BaseException], ...],
) -> AsyncIterator[bytes]:
    yield first.get("body", b"")
    try:
        async for message in messages:
            yield message.get("body", b"")
    except lost as error:
        _log.warning("a replica was lost while it answered: %s", type(error).__name__)
        if error_body is None:
            # An answer without events cannot report an error: the connection breaks.
            raise
        yield _error_event(error_body)


def _lost() -> ApiError:
    return unavailable("the replica that computed the answer was lost; try again", "replica_lost")


def _error_event(error_body: ErrorBody) -> bytes:
    """Build an event that ends a stream; it is named if the body has a type, as Anthropic's has."""
    content = error_body(_lost())
    name = content.get("type")
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(content)}\n\n".encode()
