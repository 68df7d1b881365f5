"""A server without a port in an actor of Ray: it gets requests as calls, and yields its answers."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.types import Message

from powerinfer.serve.app import build_app
from powerinfer.serve.context import ServedModel, ServerContext
from powerinfer.serve.in_process import RequestHead, call_app
from powerinfer.serve.settings import ServerSettings

__all__ = ["ModelReplica"]


class ModelReplica:
    """Loads its model when Ray starts it; `build` makes a deployment of it."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, settings: ServerSettings, load: Callable[[], ServedModel]
    ) -> None:
        """Load the model, which takes a while; Ray sends no requests before.

        Args:
            settings: of the server.
            load: loads the model.
        """
        self._context = ServerContext(settings)
        self._app = build_app(self._context)
        self._context.start(await asyncio.to_thread(load))

    async def answer(
        self, key: str | None, head: RequestHead, body: bytes
    ) -> AsyncGenerator[Message, None]:
        """Yield the messages of ASGI that answer a request.

        Args:
            key: of the prompt, by which the replica was chosen.
            head: of the request.
            body: of the request.
        """
        async with aclosing(call_app(self._app, head, body)) as messages:
            async for message in messages:
                yield message

    def __del__(self) -> None:
        """End the thread that computes."""
        self._context.close(0.0)
