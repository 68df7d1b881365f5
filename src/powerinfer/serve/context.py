"""State shared by the server's routes: the loaded model, settings and metrics."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import ParamSpec, TypeVar

from powerinfer.engine.engine import Engine
from powerinfer.loading.loader import LoadedModel
from powerinfer.serve.engine_thread import EngineThread
from powerinfer.serve.errors import ApiError, EndingError, ErrorBody, error_body
from powerinfer.serve.metrics import ServerMetrics
from powerinfer.serve.settings import ServerSettings
from powerinfer.tokenizer import Tokenizer

__all__ = ["ServedModel", "ServerContext", "ServerPhase", "queue_full", "unavailable"]

P = ParamSpec("P")
T = TypeVar("T")

# Tokenizing, templates and grammars mostly hold Python's lock: more threads gain little.
_POOL_THREADS = 4


class ServerPhase(Enum):
    """State of the server; the value is what `/health` reports."""

    LOADING = "loading"
    READY = "ok"
    DRAINING = "shutting down"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A loaded model.

    Attributes:
        context_length: most tokens of a prompt and its answer.
        loaded: everything about the model; None in tests with a fake engine.
    """

    engine: Engine
    tokenizer: Tokenizer
    context_length: int
    loaded: LoadedModel | None = None


@dataclass(slots=True)
class ServerContext:
    """State of one server, given to all routes and used on the event loop only.

    Attributes:
        created: start of the server in seconds since 1970.
        error_bodies: by path prefix, how an API other than OpenAI's writes errors.
        public_paths: paths that need no key; those that end with a slash include all paths below.
        num_requests: requests that run or wait.
    """

    settings: ServerSettings = field(default_factory=ServerSettings)
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    created: int = field(default_factory=lambda: int(time.time()))
    error_bodies: dict[str, ErrorBody] = field(default_factory=dict)
    phase: ServerPhase = ServerPhase.LOADING
    public_paths: set[str] = field(default_factory=lambda: {"/", "/health", "/v1/health"})
    num_requests: int = 0
    _model: ServedModel | None = None
    _thread: EngineThread | None = None
    _pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_POOL_THREADS, thread_name_prefix="requests")
    )

    def start(self, model: ServedModel) -> None:
        """Start answering; called on the running event loop."""
        self._model = model
        self._thread = EngineThread(model.engine, self._pool, self.metrics)
        self._thread.start()
        if self.phase is ServerPhase.LOADING:
            self.phase = ServerPhase.READY

    def drain(self) -> None:
        """Accept no more requests."""
        self.phase = ServerPhase.DRAINING

    def end_requests(self) -> None:
        """End all open requests with an error."""
        if self._thread is not None:
            self._thread.fail_all(EndingError("the server is shutting down"))

    def close(self, timeout_s: float = 10.0) -> None:
        """End the engine's thread and the pool."""
        if self._thread is not None:
            self._thread.close()
            self._thread.join(timeout_s)
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def model(self) -> ServedModel:
        """The loaded model.

        Raises:
            ApiError: 503, it is not loaded yet.
        """
        if self._model is None:
            raise unavailable("the model is loading", "loading")
        return self._model

    @property
    def engine(self) -> EngineThread:
        """The thread that computes requests.

        Raises:
            ApiError: 503, the model is not loaded yet, or the server is shutting down.
        """
        if self.phase is ServerPhase.DRAINING:
            raise unavailable("the server is shutting down", "shutting_down")
        if self._thread is None:
            raise unavailable("the model is loading", "loading")
        return self._thread

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the model; raises like `model`."""
        return self.model.tokenizer

    def measure(self) -> None:
        """Update the metrics that come from the engine."""
        if self._model is not None:
            self.metrics.measure(self._model.engine.statistics())

    @contextmanager
    def place(self) -> Iterator[None]:
        """Take one of the places for requests that run or wait.

        Raises:
            ApiError: 429, all are taken; 503, the model is loading or the server is shutting down.
        """
        _ = self.engine
        if self.num_requests >= self.settings.parallel + self.settings.max_queue:
            raise queue_full(f"too many requests: {self.settings.max_queue} others wait already")
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_requests -= 1

    async def run_blocking(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a slow function in the pool, so that the event loop stays responsive."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: function(*args, **kwargs))

    def error_body(self, path: str) -> ErrorBody:
        """Find the writer of a path's errors."""
        found = [prefix for prefix in self.error_bodies if path.startswith(prefix)]
        return self.error_bodies[max(found, key=len)] if found else error_body


def queue_full(message: str) -> ApiError:
    """429: the client should retry soon."""
    return ApiError(message, status=429, code="queue_full", headers={"Retry-After": "2"})


def unavailable(message: str, code: str) -> ApiError:
    """503: the client should retry later."""
    return ApiError(message, status=503, code=code, headers={"Retry-After": "5"})
