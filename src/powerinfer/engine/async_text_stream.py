"""The text of one generation, piece by piece, for asyncio."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Self

from powerinfer.engine.generation import Generation
from powerinfer.engine.shared_engine import SharedEngine
from powerinfer.engine.text_stream import Reader
from powerinfer.loading.async_leader import AsyncWaiter
from powerinfer.loading.turns import LOOK_EVERY_S

__all__ = ["AsyncTextStream"]


class AsyncTextStream(AsyncIterator[str]):
    """As `TextStream`, for `async for` and `async with`: the event loop stays free.

    One thread computes for all tasks that wait; it exists while there are any. A task that is
    cancelled while it waits for a piece ends the stream.
    """

    def __init__(self, reader: Reader) -> None:
        """Prepare; nothing is computed before the first piece is asked for.

        Args:
            reader: of the text.
        """
        self._reader = reader

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def __anext__(self) -> str:
        """Compute until a piece of text is certain, and return it.

        Raises:
            PowerInferError: closing the `LLM` ended this stream before its text ended.
            NumericsError: the model produced NaN or infinity; names the layer.
        """
        reader = self._reader
        reader.check_outside()
        try:
            while (shared := reader.begin()) is not None:
                piece = reader.take()
                if piece:
                    return piece
                if not reader.is_ended:
                    await self._wait(shared)
        except BaseException:
            reader.end()
            raise
        raise StopAsyncIteration

    async def _wait(self, shared: SharedEngine) -> None:
        """Until there is a piece, or none will come."""
        reader, news = self._reader, asyncio.Event()

        def is_done() -> bool:
            return reader.is_ready or shared.is_closed

        waiter = AsyncWaiter(is_done, shared.wait, asyncio.get_running_loop(), news)
        shared.async_leader.add(waiter)
        try:
            while waiter.error is None and not is_done():
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_S):
                        await news.wait()
                news.clear()
        finally:
            shared.async_leader.remove(waiter)
        error, waiter.error = waiter.error, None
        try:
            if error is not None and not is_done():
                raise error
        finally:
            del error  # else it and its traceback would keep each other, and the model, alive

    async def aclose(self) -> None:
        """Stop generating; `generation` then says `cancelled` unless the text had ended."""
        self._reader.close()

    @property
    def generation(self) -> Generation:
        """What was generated, as far as it was read."""
        return self._reader.so_far.generation
