"""The text of one generation, piece by piece, for asyncio."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from powerinfer.engine.generation import Generation, Writer
from powerinfer.engine.text_stream import next_piece
from powerinfer.engine.turn import Caller
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
        self._turn = turns.open(writer.texts())
        # Not the loop's own threads: if all of them waited for this model, nobody could go on.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="powerinfer")
        self._has_started = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if hasattr(self, "_turn"):  # not where opening it failed
            self._turns.drop(self._turn)

    async def __anext__(self) -> str:
        """Compute until a piece of text is certain, and return it.

        Raises:
            PowerInferError: another call of the same task, a call that stopped its loop, or closing
                the `LLM`, ended this stream before its text ended.
            NumericsError: the model produced NaN or infinity; names the layer.
        """
        loop, caller = asyncio.get_running_loop(), Caller(asyncio.current_task())
        await self._turns.wait(self._turn, caller)
        piece = None
        if not self._turn.is_over:
            self._has_started = True
            try:
                piece = await loop.run_in_executor(
                    self._worker, next_piece, self._turns, self._turn, caller
                )
            except BaseException:
                self._turns.end(self._turn)
                raise
        if piece is None:
            self._has_started = False
            self._worker.shutdown(wait=False)
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Stop generating, and wait for the piece in progress.

        `generation` then says `cancelled` unless the text had ended.
        """
        self._turns.end(self._turn)
        if self._has_started and self._turns.is_of_this_process:
            self._has_started = False
            # It does one thing after the other, so this comes behind the piece.
            await asyncio.wrap_future(self._worker.submit(_nothing))
        self._worker.shutdown(wait=False)

    @property
    def generation(self) -> Generation:
        """What was generated so far."""
        return self._progress.generation


def _nothing() -> None:
    """What a worker does when it is done with everything else."""
