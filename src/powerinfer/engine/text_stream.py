"""The text of one generation, piece by piece, for threads."""

import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from powerinfer.engine.generation import Generation, TextSoFar
from powerinfer.engine.request import Request
from powerinfer.engine.shared_engine import CLOSED, SharedEngine
from powerinfer.errors import PowerInferError

__all__ = ["Reader", "TextStream"]


class Reader:
    """Takes the pieces of one text from the engine; several threads may ask.

    Attributes:
        so_far: what was taken; keeps neither weights nor KV cache alive.
        is_ended: nothing more is taken.
    """

    def __init__(self, shared: SharedEngine, request: Request) -> None:
        """Check the request; it is lined up with the first piece.

        Args:
            shared: engine.
            request: of one text.

        Raises:
            PromptError: it can never run.
        """
        self._shared: SharedEngine | None = shared
        self._ticket = shared.ticket(request)
        self._has_entered = False
        self._taking = threading.Lock()
        self.so_far = TextSoFar(self._ticket)
        self.is_ended = False

    def __del__(self) -> None:
        # May run anywhere, so it takes no lock.
        self.end()

    def check_outside(self) -> None:
        """Refuse to wait for the step that asks.

        Raises:
            PowerInferError: the call comes from inside a step, or from another process.
        """
        shared = self._shared
        if shared is not None:
            shared.check_outside()

    def begin(self) -> SharedEngine | None:
        """Line up, once; None where the text has ended.

        Raises:
            PowerInferError: see `SharedEngine.check_usable`.
        """
        shared = self._shared
        if shared is None:
            return None
        if shared.is_closed:
            self.end()
            raise PowerInferError(CLOSED)
        with self._taking:
            if not self._has_entered:
                shared.enter(self._ticket)
                self._has_entered = True
        return shared

    def take(self) -> str:
        """A piece that is there already; empty if there is none.

        Raises:
            PowerInferError: the text ended without a result.
        """
        text = ""
        with self._taking:
            unread = self._ticket.unread
            while unread and not text and not self.is_ended:
                output = unread.popleft()
                self.so_far.add(output)
                text = output.text
                del output
        if self.so_far.is_over:
            self.end()
            self.so_far.raise_error()
        return text

    @property
    def is_ready(self) -> bool:
        """Waiting for a piece would not help."""
        return bool(self._ticket.unread) or self.is_ended

    def close(self) -> None:
        """End it, and tell those who wait for a piece."""
        shared = self._shared
        self.end()
        if shared is not None and shared.is_of_this_process:
            shared.tell()

    def end(self) -> None:
        """Take nothing more, and have nothing more computed."""
        self.is_ended = True
        shared, self._shared = self.__dict__.get("_shared"), None
        if shared is not None:
            self._ticket.is_cancelled = True


class TextStream(Iterator[str]):
    """Iterates over the pieces of a text while it is generated.

    Pieces are never empty and never split a character. Time the consumer takes between pieces is
    not counted. `generation` may be read at any moment and tells what was read so far.

    Streams of one model go on side by side. A text is computed while somebody waits for a piece of
    any text; it pauses when 32 tokens are unread, unless others wait for its place. A stream that
    is not read to its end should be closed, best by a `with` statement; if it is forgotten, it ends
    when it is garbage collected. Threads may share a stream: each piece goes to one of them.

    A stream that has ended, for whatever reason, keeps neither weights nor KV cache alive.
    """

    def __init__(self, reader: Reader) -> None:
        """Prepare; nothing is computed before the first piece is asked for.

        Args:
            reader: of the text.
        """
        self._reader = reader

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
            PowerInferError: closing the `LLM` ended it before its text ended.
            NumericsError: the model produced NaN or infinity; names the layer.
        """
        reader = self._reader
        reader.check_outside()
        try:
            while (shared := reader.begin()) is not None:
                piece = reader.take()
                if piece:
                    return piece
                shared.wait(lambda: reader.is_ready)
        except BaseException:
            reader.end()
            raise
        raise StopIteration

    def close(self) -> None:
        """Stop generating; `generation` then says `cancelled` unless it had ended."""
        self._reader.close()

    @property
    def generation(self) -> Generation:
        """What was generated, as far as it was read."""
        return self._reader.so_far.generation
