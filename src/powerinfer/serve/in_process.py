"""Calls an application without a port."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Scope

__all__ = ["RequestHead", "call_app"]

_log = logging.getLogger(__name__)

# A slow reader makes the application wait.
_MOST_UNREAD = 16


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request without its body.

    Attributes:
        path: without the query.
        query: part of the address after `?`.
        headers: names in lower case, and values.
    """

    method: str
    path: str
    query: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def scope(self) -> Scope:
        """Build the ASGI scope."""
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "root_path": "",
            "query_string": self.query,
            "headers": list(self.headers),
            "client": None,
            "server": ("127.0.0.1", 0),
        }


async def call_app(
    app: ASGIApp, head: RequestHead, body: bytes = b""
) -> AsyncGenerator[Message, None]:
    """Yield the messages that the application sends; closing the generator disconnects."""
    unread: asyncio.Queue[Message | None] = asyncio.Queue(_MOST_UNREAD)
    bodies = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Message:
        message = next(bodies, None)
        return await asyncio.Future[Message]() if message is None else message

    async def run() -> None:
        try:
            await app(head.scope(), receive, unread.put)
        except Exception:  # noqa: BLE001  one request must not end the others
            # The answer was status 500; see `build_app`.
            _log.exception("a request failed")
        await unread.put(None)

    running = asyncio.create_task(run())
    try:
        while (message := await unread.get()) is not None:
            yield message
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
