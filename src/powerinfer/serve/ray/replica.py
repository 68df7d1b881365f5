"""A server without a port in a Ray actor: requests are calls, which yield the answers."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.types import Message

from powerinfer.serve.app import build_app
from powerinfer.serve.context import ServerContext
from powerinfer.serve.in_process import RequestHead, call_app
from powerinfer.serve.served_model import ServedModel
from powerinfer.serve.settings import ServerSettings

__all__ = ["ModelReplica"]


class ModelReplica:
    """A replica that loads its model when Ray starts it; `build` makes a deployment of it."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, settings: ServerSettings, load: Callable[[], ServedModel]
    ) -> None:
        """Load the model, which takes a while; Ray sends no requests before."""
        self._context = ServerContext(settings)
        self._app = build_app(self._context)
        self._context.start(await asyncio.to_thread(load))

    async def answer(
        self, key: str | None, head: RequestHead, body: bytes
    ) -> AsyncGenerator[Message, None]:
        """Yield the ASGI messages that answer a request; the router reads `key`."""
        async with aclosing(call_app(self._app, head, body)) as messages:
            async for message in messages:
                yield message

    def __del__(self) -> None:
        """End the thread that computes."""
        self._context.close(0.0)
