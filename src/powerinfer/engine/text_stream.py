"""Text of one generation, whole or piece by piece, for threads and for asyncio."""

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Self

from powerinfer.engine.engine import CLOSED, Engine
from powerinfer.engine.request import Output, Request, RequestHandle
from powerinfer.errors import PowerInferError
from powerinfer.loading.turns import LOOK_EVERY_S, AsyncWaiter
from powerinfer.models.metrics import Metrics
from powerinfer.sampling.finish_reason import FinishReason
from powerinfer.sampling.logprobs import TokenLogprob

__all__ = ["AsyncTextStream", "Generation", "TextSoFar", "TextStream"]


@dataclass(frozen=True, slots=True)
class Generation:
    """One finished text.

    Attributes:
        text: the generated text, without the prompt and the stop string, and without a character
            that the token limit cut.
        token_ids: ids of the generated tokens, including those of a stop string but not the token
            that ended the generation.
        finish_reason: `stop`, `length` or `cancelled`, see `FinishReason`.
        metrics: time and work that it took.
        seed: seed of the sampler, for repeating the generation.
        logprobs: log probability of each of `token_ids` under the model's own distribution (before
            bias, penalties, temperature and filters, see `powerinfer.sampling.logprobs`); None
            unless asked for.
    """

    text: str
    token_ids: list[int]
    finish_reason: Literal["stop", "length", "cancelled"]
    metrics: Metrics
    seed: int
    logprobs: list[TokenLogprob] | None = None


class TextSoFar:
    """Collected outputs of one text of a request: plain values that outlive the model.

    Attributes:
        error: the error that ended the text without a result; None if there is none.
        is_over: the text has ended.
    """

    def __init__(self, handle: RequestHandle, index: int = 0) -> None:
        self._handle = handle
        self._index = index
        self._pieces: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._reason = FinishReason.CANCELLED
        self.error: PowerInferError | None = None
        self.is_over = False

    def add(self, output: Output) -> None:
        """Add the output of one step."""
        if output.text:
            self._pieces.append(output.text)
        self._token_ids.extend(output.token_ids)
        self._logprobs.extend(output.logprobs)
        if output.finish_reason is not None:
            self._reason = output.finish_reason
        self.error, self.is_over = output.error, output.is_last

    def raise_error(self) -> None:
        """Raise, once, the error that ended the text without a result."""
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # else it and its traceback would keep each other, and the model, alive

    def last_token_ids(self, count: int) -> list[int]:
        """The last tokens of the text so far."""
        return self._token_ids[-count:]

    @property
    def generation(self) -> Generation:
        """The text so far; `cancelled` unless it has ended."""
        handle, num_top = self._handle, self._handle.request.params.logprobs
        cost = handle.costs[self._index]
        return Generation(
            text="".join(self._pieces),
            token_ids=list(self._token_ids),
            finish_reason=self._reason.value,
            metrics=cost.metrics(len(self._token_ids)),
            seed=handle.seed + self._index,
            logprobs=None if num_top is None else list(self._logprobs),
        )


class _Stream:
    """Takes the pieces of one text from the engine; several threads may use it."""

    def __init__(self, engine: Engine, request: Request) -> None:
        """Check a request of one text; it is queued when the first piece is asked for.

        Raises:
            PromptError: it can never run.
        """
        # Before the engine: `_end`, also after an error here, expects the handle of an engine.
        self._handle = engine.prepare(request)
        self._engine: Engine | None = engine
        self._has_entered = False
        self._taking = threading.Lock()
        # Keeps neither weights nor KV cache alive.
        self._so_far = TextSoFar(self._handle)
        self._is_ended = False

    def __del__(self) -> None:
        # May run anywhere, so it takes no lock.
        self._end()

    @property
    def generation(self) -> Generation:
        """The text as far as it was read."""
        return self._so_far.generation

    def last_token_ids(self, count: int) -> list[int]:
        """The last `count` tokens that were read, or all if they are fewer."""
        return self._so_far.last_token_ids(count)

    def _check_outside(self) -> None:
        """Raise PowerInferError inside a step, where the caller would wait for itself."""
        engine = self._engine
        if engine is not None:
            engine.check_outside()

    def _begin(self) -> Engine | None:
        """Queue the request on the first call; return None if the text has ended."""
        engine = self._engine
        if engine is None:
            return None
        if engine.is_closed:
            self._end()
            raise PowerInferError(CLOSED)
        with self._taking:
            if not self._has_entered:
                engine.enter(self._handle)
                self._has_entered = True
        return engine

    def _take(self) -> str:
        """Return a piece that is there already, or an empty text; see `TextSoFar.raise_error`."""
        text = ""
        with self._taking:
            unread = self._handle.unread
            while unread and not text and not self._is_ended:
                output = unread.popleft()
                self._so_far.add(output)
                text = output.text
                del output
        if self._so_far.is_over:
            self._end()
            self._so_far.raise_error()
        return text

    def _is_ready(self) -> bool:
        """Tell whether there is something to take, or never will be."""
        return bool(self._handle.unread) or self._is_ended

    def _close(self) -> None:
        """End the text and notify those who wait for a piece."""
        engine = self._engine
        self._end()
        if engine is not None and engine.is_of_this_process:
            engine.notify()

    def _end(self) -> None:
        """Take nothing more, and cancel the request."""
        self._is_ended = True
        engine, self._engine = self.__dict__.get("_engine"), None
        if engine is not None:
            self._handle.is_cancelled = True


class TextStream(_Stream, Iterator[str]):
    """Iterates over the pieces of a text while it is generated.

    Pieces are never empty and never split a character. The time that the consumer takes between
    pieces is not counted. `generation` can be read at any time and covers what was read so far.

    Streams of one model run side by side. A text is computed while somebody waits for a piece of
    any text; it pauses when 32 tokens are unread, unless others wait for its place. Close a stream
    that is not read to its end, best with a `with` statement; a forgotten one ends when it is
    garbage collected. Threads may share a stream: each piece goes to one of them.

    A stream that has ended, for whatever reason, keeps neither weights nor KV cache alive.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> str:
        """Compute until a piece of text is certain, and return it.

        Raises:
            PowerInferError: closing the `LLM` ended it before its text ended.
            NumericsError: the model produced NaN or infinity; names the layer.
        """
        self._check_outside()
        try:
            while (engine := self._begin()) is not None:
                piece = self._take()
                if piece:
                    return piece
                engine.wait(self._is_ready)
        except BaseException:
            self._end()
            raise
        raise StopIteration

    def close(self) -> None:
        """Stop generating; `generation` then says `cancelled` unless the text had ended."""
        self._close()


class AsyncTextStream(_Stream, AsyncIterator[str]):
    """A `TextStream` for `async for` and `async with`, which keeps the event loop free.

    One thread computes for all waiting tasks and exists while there are any. Cancelling a task that
    waits for a piece ends the stream.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def __anext__(self) -> str:
        """Compute until a piece of text is certain, and return it.

        Raises:
            PowerInferError: closing the `LLM` ended this stream before its text ended.
            NumericsError: the model produced NaN or infinity; names the layer.
        """
        self._check_outside()
        try:
            while (engine := self._begin()) is not None:
                piece = self._take()
                if piece:
                    return piece
                if not self._is_ended:
                    await self._wait(engine)
        except BaseException:
            self._end()
            raise
        raise StopAsyncIteration

    async def _wait(self, engine: Engine) -> None:
        """Wait until there is a piece, or none will come."""
        import asyncio

        news = asyncio.Event()

        def is_done() -> bool:
            return self._is_ready() or engine.is_closed

        waiter = AsyncWaiter(is_done, engine.wait, asyncio.get_running_loop(), news)
        engine.async_leader.add(waiter)
        try:
            while waiter.error is None and not is_done():
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_S):
                        await news.wait()
                news.clear()
        finally:
            engine.async_leader.remove(waiter)
        error, waiter.error = waiter.error, None
        try:
            if error is not None and not is_done():
                raise error
        finally:
            del error  # else it and its traceback would keep each other, and the model, alive

    async def aclose(self) -> None:
        """Stop generating; `generation` then says `cancelled` unless the text had ended."""
        self._close()
