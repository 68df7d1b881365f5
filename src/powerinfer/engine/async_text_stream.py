"""The text of one generation, piece by piece, for asyncio."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from powerinfer.engine.generation import Generation, Writer
from powerinfer.engine.text_stream import next_piece
from powerinfer.engine.turn import Caller, Held
from powerinfer.engine.turns import Turns

__all__ = ["AsyncTextStream"]


class AsyncTextStream(AsyncIterator[str]):
    """As `TextStream`, for `async for` and `async with`: the event loop stays free.

    A thread of the stream's own computes the pieces. The first piece waits until nobody else uses
    the model, be that a thread or a task. A task that is cancelled while it waits for a piece ends
    the stream; the model is free for others once the piece in progress is computed.
    """

    def __init__(self, writer: Writer, turns: Turns) -> None:
        """Prepare; nothing is computed before the first piece is asked for.

        Args:
            writer: of the text.
            turns: of the model.
        """
        self._progress = writer.progress
        self._turns = turns
        # Not the loop's own threads: if all of them waited for this model, nobody could go on.
        worker = ThreadPoolExecutor(1, thread_name_prefix="powerinfer")
        self._worker = worker
        self._piece: Future[str | None] | None = None
        self._turn = turns.open(writer.texts(), lambda: worker.shutdown(wait=False))
        self._held = Held(turns.drop, self._turn)

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
            PowerInferError: another call of the same task, a call that stopped its loop, or closing
                the `LLM`, ended this stream before its text ended.
            NumericsError: the model produced NaN or infinity; names the layer.
        """
        caller = Caller(asyncio.current_task())
        await self._turns.wait_in_loop(self._turn, caller)
        if self._turn.is_over:
            raise StopAsyncIteration
        try:
            self._piece = self._worker.submit(next_piece, self._turns, self._turn)
        except RuntimeError:  # another thread ended the turn just now, and with it the worker
            await self._turns.wait_in_loop(self._turn, caller)
            raise StopAsyncIteration from None
        try:
            piece = await asyncio.wrap_future(self._piece)
        except BaseException:
            self._turns.end(self._turn)
            raise
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Stop generating, and wait for the piece in progress.

        `generation` then says `cancelled` unless the text had ended.
        """
        self._turns.end(self._turn)
        if self._piece is not None and self._turns.is_of_this_process:
            # What came of it was told to whoever asked for it.
            await asyncio.gather(asyncio.wrap_future(self._piece), return_exceptions=True)

    @property
    def generation(self) -> Generation:
        """What was generated so far."""
        return self._progress.generation
