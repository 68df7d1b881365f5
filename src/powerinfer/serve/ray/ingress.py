"""Takes requests from Ray's proxy and hands them to replicas."""

import asyncio
from collections.abc import AsyncIterator

from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from powerinfer.serve.app import build_app
from powerinfer.serve.context import ServerContext
from powerinfer.serve.errors import ApiError, queue_full
from powerinfer.serve.in_process import RequestHead
from powerinfer.serve.ray.prefix import prefix_key
from powerinfer.serve.ray.relay import relay

__all__ = ["Ingress"]

# Time for Ray to notice that a replica died.
_PAUSE_S = 0.2
_LOST = (RayActorError, DeploymentUnavailableError)


class Ingress:
    """Entry point for Ray's proxy; `build` makes a deployment of it."""

    def __init__(self, replicas: DeploymentHandle) -> None:
        """Keep the handle of the replicas."""
        self._replicas = replicas.options(stream=True)
        # The context knows how each API writes errors.
        self._context = ServerContext()
        build_app(self._context)

    async def __call__(self, request: Request) -> Response:
        """Answer a request."""
        path = request.scope["path"]
        body = await request.body()
        head = RequestHead(
            request.method, path, request.scope["query_string"], tuple(request.headers.raw)
        )
        key = prefix_key(body) if body else None

        def ask() -> AsyncIterator[Message]:
            return aiter(self._replicas.answer.remote(key, head, body))

        shape = self._context.error_body(path)
        try:
            return await relay(ask, shape, lambda: asyncio.sleep(_PAUSE_S), _LOST)
        except BackPressureError:
            return queue_full("too many requests are waiting already").response(shape)
        except ApiError as error:
            return error.response(shape)
