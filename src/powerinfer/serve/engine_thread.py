"""The thread that steps the engine and hands outputs to the event loop."""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from functools import partial
from typing import Generic

from powerinfer.engine.request import Output, Request
from powerinfer.errors import PowerInferError
from powerinfer.serve.stepping import AnyHandle, HandleT, StepEngine

__all__ = ["EngineThread", "RequestStream", "StreamWatcher"]

_log = logging.getLogger(__name__)


class StreamWatcher:
    """Observer of requests, called on the event loop; the base class ignores everything."""

    def opened(self, handle: AnyHandle) -> None:
        """A request was accepted."""

    def received(
        self, handle: AnyHandle, seconds: float, num_tokens: int, *, is_first: bool
    ) -> None:
        """A text grew, `seconds` after it last did or, at first, after the request was accepted."""

    def closed(self, handle: AnyHandle) -> None:
        """A request is no longer read, whether it has ended or not."""


class RequestStream:
    """Outputs of one request: an asynchronous iterator for a single reader."""

    def __init__(self, handle: AnyHandle) -> None:
        self.handle = handle
        self._unread: deque[Output] = deque()
        self._arrived = asyncio.Event()
        self._num_open = handle.request.params.n
        self._last_at: dict[int, float] = {}
        self._opened_at = time.monotonic()

    def __aiter__(self) -> AsyncIterator[Output]:
        """Return itself."""
        return self

    async def __anext__(self) -> Output:
        """Return the next output of any text; ends when all texts have ended."""
        while not self._unread:
            if self._num_open <= 0:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._unread.popleft()

    @property
    def is_over(self) -> bool:
        """All texts have ended, read or not."""
        return self._num_open <= 0

    def take(self, output: Output, watcher: StreamWatcher) -> None:
        """Queue an output for the reader."""
        if self._num_open <= 0:
            return
        now = time.monotonic()
        if output.token_ids:
            before = self._last_at.get(output.index)
            seconds = now - (self._opened_at if before is None else before)
            watcher.received(self.handle, seconds, len(output.token_ids), is_first=before is None)
            self._last_at[output.index] = now
        self._unread.append(output)
        self._num_open -= output.is_last
        self._arrived.set()

    def fail(self, error: PowerInferError) -> None:
        """End all running texts with an error."""
        if self._num_open > 0:
            self._num_open = 0
            self._unread.append(Output(index=0, error=error))
            self._arrived.set()


class EngineThread(Generic[HandleT]):
    """Steps an engine while it has work; requests are opened and read on one event loop."""

    def __init__(
        self, engine: StepEngine[HandleT], pool: Executor, watcher: StreamWatcher | None = None
    ) -> None:
        """Prepare the thread within a running event loop; requests are checked in `pool`."""
        self.engine = engine
        self._pool = pool
        self._watcher = watcher or StreamWatcher()
        self._loop = asyncio.get_running_loop()
        self._streams: dict[HandleT, RequestStream] = {}
        # Outputs of requests whose submission this loop has not noticed yet.
        self._num_submitting = 0
        self._early: list[tuple[HandleT, Output]] = []
        self._condition = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start stepping."""
        self._thread.start()

    def close(self) -> None:
        """End the thread after the current step; running requests are not finished."""
        with self._condition:
            self._is_closing = True
            self._condition.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; returns False after a timeout."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def num_open(self) -> int:
        """Number of requests that are being read."""
        return len(self._streams)

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[RequestStream]:
        """Submit a request and read it; leaving the context cancels what has not ended.

        Raises:
            PromptError: the request can never run.
        """
        handle, stream = await self._new_stream(request)
        self._watcher.opened(handle)
        self._wake()
        try:
            yield stream
        finally:
            del self._streams[handle]
            self._watcher.closed(handle)
            if not stream.is_over:
                self._cancel(handle)

    async def _new_stream(self, request: Request) -> tuple[HandleT, RequestStream]:
        """Submit a request, and take the outputs that arrived before this coroutine resumed."""
        self._num_submitting += 1
        try:
            handle = await self._submit(request)
            stream = self._streams[handle] = RequestStream(handle)
            for early, output in self._early:
                if early is handle:
                    stream.take(output, self._watcher)
            return handle, stream
        finally:
            self._num_submitting -= 1
            if not self._num_submitting:
                self._early.clear()

    async def _submit(self, request: Request) -> HandleT:
        """Submit in the pool; the request is cancelled if the caller is."""
        submitted = self._loop.run_in_executor(self._pool, self.engine.submit, request)
        try:
            return await asyncio.shield(submitted)
        except asyncio.CancelledError:
            submitted.add_done_callback(self._forget)
            raise

    def _forget(self, submitted: "asyncio.Future[HandleT]") -> None:
        if not submitted.cancelled() and submitted.exception() is None:
            self._cancel(submitted.result())

    def _cancel(self, handle: HandleT) -> None:
        self.engine.cancel(handle)
        self._wake()

    def _wake(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._is_closing and not self.engine.has_work:
                    self._condition.wait()
                if self._is_closing:
                    return
            report = self._step()
            try:
                self._loop.call_soon_threadsafe(report)
            except RuntimeError:
                # The loop has ended, so nobody reads any more.
                self.close()

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

    def _deliver(self, outputs: list[tuple[HandleT, Output]]) -> None:
        for handle, output in outputs:
            stream = self._streams.get(handle)
            if stream is not None:
                stream.take(output, self._watcher)
            elif self._num_submitting:
                self._early.append((handle, output))

    def fail_all(self, error: PowerInferError) -> None:
        """End all requests with an error; called on the event loop."""
        for handle, stream in self._streams.items():
            self.engine.cancel(handle)
            stream.fail(error)
