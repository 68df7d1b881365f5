"""An engine of the server with its open requests, and the streams that read them."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeAlias

from powerinfer.engine.engine import Engine
from powerinfer.engine.request import Output, Request, RequestHandle
from powerinfer.errors import PowerInferError
from powerinfer.serve.errors import ApiError
from powerinfer.serve.metrics import ModelMetrics

__all__ = ["RequestStream", "RunningEngine", "Unread"]

_log = logging.getLogger(__name__)


class RequestStream:
    """A running request, whose outputs go into a queue that several requests may share."""

    def __init__(self, handle: RequestHandle, unread: "Unread") -> None:
        self.handle = handle
        self._unread = unread
        self._num_open = handle.request.params.n
        self._last_at: dict[int, float] = {}
        self._opened_at = time.monotonic()

    @property
    def is_over(self) -> bool:
        """All texts have ended, read or not."""
        return self._num_open <= 0

    def take(self, output: Output, metrics: ModelMetrics) -> None:
        """Queue an output for the reader."""
        if self.is_over:
            return
        now = time.monotonic()
        if output.token_ids:
            before = self._last_at.get(output.index)
            seconds = now - (self._opened_at if before is None else before)
            metrics.received(seconds, len(output.token_ids), is_first=before is None)
            self._last_at[output.index] = now
        self._unread.put_nowait((self, output))
        self._num_open -= output.is_last

    def fail(self, error: PowerInferError) -> None:
        """End all running texts with an error."""
        if not self.is_over:
            self._num_open = 0
            self._unread.put_nowait((self, Output(index=0, error=error)))


Unread: TypeAlias = asyncio.Queue[tuple[RequestStream, Output]]
"""Outputs in the order of their arrival, each with its stream."""


class RunningEngine:
    """An engine that `EngineThread` steps; requests are opened and read on one event loop.

    Attributes:
        turn_s: seconds of computing that it had, or missed while it was idle; for `EngineThread`.
        refusal: the answer to further requests, once there may be none.
    """

    def __init__(
        self, engine: Engine, pool: Executor, metrics: ModelMetrics, wake: Callable[[], None]
    ) -> None:
        """Prepare for requests within a running event loop.

        Args:
            pool: where requests are checked.
            wake: tells the thread that there is work.
        """
        self.engine = engine
        self.turn_s = 0.0
        self.refusal: ApiError | None = None
        self._pool = pool
        self._metrics = metrics
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._streams: dict[RequestHandle, RequestStream] = {}
        # Outputs of requests whose submission this loop has not noticed yet.
        self._num_submitting = 0
        self._early: list[tuple[RequestHandle, Output]] = []

    @property
    def num_open(self) -> int:
        """Number of requests that are being read."""
        return len(self._streams)

    @asynccontextmanager
    async def open(self, request: Request, unread: Unread) -> AsyncIterator[RequestStream]:
        """Submit a request, and queue its outputs; leaving the context cancels what has not ended.

        Raises:
            PromptError: the request can never run.
            ApiError: there may be no more requests.
        """
        if self.refusal is not None:
            raise self.refusal
        handle, stream = await self._new_stream(request, unread)
        self._wake()
        try:
            yield stream
        finally:
            del self._streams[handle]
            self._metrics.closed(handle)
            if not stream.is_over:
                self._cancel(handle)

    def step(self) -> None:
        """Compute a step; its outputs reach their streams on the event loop.

        Raises:
            RuntimeError: the loop has ended, so nobody reads any more.
        """
        self._loop.call_soon_threadsafe(self._step())

    def fail_all(self, error: PowerInferError) -> None:
        """End all requests with an error; called on the event loop."""
        for handle, stream in self._streams.items():
            self.engine.cancel(handle)
            stream.fail(error)

    async def _new_stream(
        self, request: Request, unread: Unread
    ) -> tuple[RequestHandle, RequestStream]:
        """Submit a request, and take the outputs that arrived before this coroutine resumed."""
        self._num_submitting += 1
        try:
            handle = await self._submit(request)
            stream = self._streams[handle] = RequestStream(handle, unread)
            for early, output in self._early:
                if early is handle:
                    stream.take(output, self._metrics)
            return handle, stream
        finally:
            self._num_submitting -= 1
            if not self._num_submitting:
                self._early.clear()

    async def _submit(self, request: Request) -> RequestHandle:
        """Submit in the pool; the request is cancelled if the caller is."""
        submitted = self._loop.run_in_executor(self._pool, self.engine.submit, request)
        try:
            return await asyncio.shield(submitted)
        except asyncio.CancelledError:
            submitted.add_done_callback(self._forget)
            raise

    def _forget(self, submitted: "asyncio.Future[RequestHandle]") -> None:
        if not submitted.cancelled() and submitted.exception() is None:
            self._cancel(submitted.result())

    def _cancel(self, handle: RequestHandle) -> None:
        self.engine.cancel(handle)
        self._wake()

    def _step(self) -> Callable[[], None]:
        """Compute a step; returns the callback that reports it on the event loop."""
        try:
            return partial(self._deliver, self.engine.step())
        except PowerInferError as error:
            return partial(self.fail_all, error)
        except Exception as error:  # noqa: BLE001  requests must hear of it, whatever it is
            _log.exception("a step failed")
            failed = PowerInferError(f"a step failed: {type(error).__name__}")
            return partial(self.fail_all, failed)

    def _deliver(self, outputs: list[tuple[RequestHandle, Output]]) -> None:
        for handle, output in outputs:
            stream = self._streams.get(handle)
            if stream is not None:
                stream.take(output, self._metrics)
            elif self._num_submitting:
                self._early.append((handle, output))
