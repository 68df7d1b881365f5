"""State shared by the server's routes: its models, settings and metrics."""

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from enum import Enum
from typing import ParamSpec, TypeVar

from powerinfer.serve.chat.answerer import Answerer
from powerinfer.serve.errors import ErrorBody, error_body, queue_full
from powerinfer.serve.fields import Fields
from powerinfer.serve.metrics import ServerMetrics
from powerinfer.serve.model_pool import ModelPool
from powerinfer.serve.model_source import ModelSource
from powerinfer.serve.pooled_model import PooledModel
from powerinfer.serve.served_model import ModelContext, ServedModel
from powerinfer.serve.settings import ServerSettings
from powerinfer.serve.workers import Workers
from powerinfer.values import JSONObject

__all__ = ["ServerContext", "ServerPhase"]

P = ParamSpec("P")
T = TypeVar("T")


class ServerPhase(Enum):
    """State of the server; the value is what `/health` reports."""

    LOADING = "loading"
    READY = "ok"
    DRAINING = "shutting down"


class ServerContext:
    """State of one server, given to all routes and used on the event loop only.

    Attributes:
        models: the models, of which each request uses one.
        created: start of the server in seconds since 1970.
        error_bodies: by path prefix, how an API other than OpenAI's writes errors.
        answerers: by the name that clients use, who answers chats in place of a model.
        public_paths: paths that need no key; those that end with a slash include all paths below.
        num_requests: requests that run or wait.
    """

    def __init__(
        self,
        settings: ServerSettings | None = None,
        sources: Sequence[ModelSource] = (),
        keep_alive_s: float | None = None,
    ) -> None:
        """Create the state of a server that loads `sources` when they are asked for.

        Without any it has one model, the one that `start` gets.

        Args:
            keep_alive_s: see `ModelPool`.
        """
        self.settings = settings or ServerSettings()
        self.metrics = ServerMetrics(by_model=bool(sources))
        self.workers = Workers()
        self.models = ModelPool(self.settings, self.metrics, self.workers, sources, keep_alive_s)
        self.created = int(time.time())
        self.error_bodies: dict[str, ErrorBody] = {}
        self.answerers: dict[str, Answerer] = {}
        self.public_paths = {"/", "/health", "/v1/health"}
        self.phase = ServerPhase.READY if sources else ServerPhase.LOADING
        self.num_requests = 0

    def start(self, model: ServedModel) -> None:
        """Start answering with one model; called on the running event loop."""
        self.models.put(model)
        if self.phase is ServerPhase.LOADING:
            self.phase = ServerPhase.READY

    def drain(self) -> None:
        """Accept no more requests."""
        self.phase = ServerPhase.DRAINING
        self.models.drain()

    def end_requests(self) -> None:
        """End all open requests with an error."""
        self.models.end_requests()

    def close(self, timeout_s: float = 10.0) -> None:
        """End the engines' thread and the pool."""
        self.models.close(timeout_s)
        self.workers.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Take one of the places for requests that run or wait.

        Raises:
            ApiError: 429, all are taken; 503, the model is loading or the server is shutting down.
        """
        self.models.check_answers()
        if self.num_requests >= self.settings.parallel + self.settings.max_queue:
            raise queue_full(f"too many requests: {self.settings.max_queue} others wait already")
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_requests -= 1

    @asynccontextmanager
    async def model_of(self, body: JSONObject) -> AsyncIterator[ModelContext]:
        """Load the model that a request's `model` names, and keep it until the block ends.

        Raises:
            ApiError: 404, there is no such model; or as `ModelPool.using`.
        """
        named = body.get("model") or self.models.models[0].name
        await self.models.refresh(named if isinstance(named, str) else None)
        fields = Fields({} if self.models.is_one else body)
        async with self.models.using(self.models.find(fields.text("model"), "model")) as model:
            yield model

    async def chosen(self, name: str | None) -> PooledModel:
        """Find the model that a request names; the only model of a server has any name here.

        Not all APIs care for its name; those that do check it when they read the body.

        Raises:
            ApiError: 404, there is no such model.
        """
        await self.models.refresh(name or self.models.models[0].name)
        return self.models.find(None if self.models.is_one else name, "model")

    async def run_blocking(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a slow function in the pool, so that the event loop stays responsive."""
        return await self.workers.run(function, *args, **kwargs)

    def error_body(self, path: str) -> ErrorBody:
        """Find the writer of a path's errors."""
        found = [prefix for prefix in self.error_bodies if path.startswith(prefix)]
        return self.error_bodies[max(found, key=len)] if found else error_body
