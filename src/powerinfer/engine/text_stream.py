"""The text of one generation, piece by piece, for threads."""

import threading
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

from powerinfer.engine.generation import Generation, Writer
from powerinfer.engine.turn import Caller, Held, Turn
from powerinfer.engine.turns import Turns

__all__ = ["TextStream", "generate_all", "next_piece"]


class TextStream(Iterator[str]):
    """Iterates over the pieces of a text while it is generated.

    Pieces are never empty and never split a character. Time the consumer takes between pieces is
    not counted. `generation` may be read at any moment and tells what there is so far.

    The first piece waits until no other thread uses the model; from then on the model is this
    stream's until it ends. One that is not read to its end should be closed, best by a `with`
    statement; if it is forgotten, it ends when it is garbage collected. Threads may share a stream:
    each piece goes to one of them.

    Read two streams in two threads that you started, not in the threads of a pool: a thread that is
    given another stream to read ends the one that it has read before. In asyncio and web frameworks
    use `astream`.

    A stream that has ended, for whatever reason, keeps neither weights nor KV cache alive.
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
        self._held = Held(turns.drop, self._turn)
        # Reentrant, so that closing from inside a piece does not wait for itself.
        self._reading = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __next__(self) -> str:
        """Compute until a piece of text is certain, and return it.

        Raises:
            PowerInferError: another call of the thread that read this stream, or closing the `LLM`,
                ended it before its text ended.
            NumericsError: the model produced NaN or infinity; names the layer.
        """
        # Waiting with the lock held would stop the thread whose stream has the turn, if it reads
        # this one next.
        self._turns.wait(self._turn, Caller())
        with self._reading:
            piece = next_piece(self._turns, self._turn)
        if piece is None:
            raise StopIteration
        return piece

    def close(self) -> None:
        """Stop generating; `generation` then says `cancelled` unless it had ended."""
        self._turns.end(self._turn)
        if self._turns.is_of_this_process:
            with self._reading:  # until the piece that another thread reads is computed
                pass

    @property
    def generation(self) -> Generation:
        """What was generated so far."""
        return self._progress.generation


def next_piece(turns: Turns, turn: Turn) -> str | None:
    """Compute one piece; None where there are no more.

    Args:
        turns: of the model.
        turn: that was waited for, and whose work yields pieces that are not empty.

    Raises:
        PowerInferError: something else ended the turn.
    """
    with turns.piece(turn) as work:
        piece = next(work, None)
        if piece is None:
            turns.end(turn)
        return piece


def generate_all(turns: Turns, writers: Iterable[Writer]) -> list[Generation]:
    """Generate texts one after the other, in one turn.

    Raises:
        PowerInferError: the model was closed meanwhile.
        NumericsError: the model produced NaN or infinity; names the layer.
    """
    done: list[Generation] = []
    held = Held(turns.drop, turns.open(_pieces(writers, done)))
    try:
        turns.wait(held.turn, Caller())
        while next_piece(turns, held.turn) is not None:
            pass
    finally:
        turns.end(held.turn)
    return done


def _pieces(writers: Iterable[Writer], done: list[Generation]) -> Iterator[str]:
    for writer in writers:
        yield from writer.texts()
        done.append(writer.progress.generation)
