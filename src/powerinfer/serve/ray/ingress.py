"""Takes requests from Ray's proxy and hands them to replicas."""

import asyncio
from collections.abc import AsyncIterator

from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message

from powerinfer.serve.app import build_app
from powerinfer.serve.context import ServerContext
from powerinfer.serve.errors import ApiError, error_body
from powerinfer.serve.in_process import RequestHead
from powerinfer.serve.ray.prefix import prefix_key
from powerinfer.serve.ray.relay import Relay

__all__ = ["Ingress"]

# Time for Ray to notice that a replica died.
_PAUSE_S = 0.2


class Ingress:
    """Entry point for Ray's proxy; `build` makes a deployment of it."""

    def __init__(self, replicas: DeploymentHandle) -> None:
        """Keep the handle of the replicas."""
        self._replicas = replicas.options(stream=True)
        self._relay = Relay(lost=(RayActorError, DeploymentUnavailableError))
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

        shape = self._context.error_body(path) or error_body
        try:
            relayed = await self._relay.open(ask, shape, lambda: asyncio.sleep(_PAUSE_S))
        except BackPressureError:
            return _full().response(shape)
        except ApiError as error:
            return error.response(shape)
        response = StreamingResponse(relayed.chunks, relayed.status)
        response.raw_headers = list(relayed.headers)
        return response


def _full() -> ApiError:
    return ApiError(
        "too many requests are waiting already",
        status=429,
        type="server_error",
        code="queue_full",
        headers={"Retry-After": "2"},
    )
