"""One use of the sequence of an `LLM`, and who asks for it; `Turns` lets one at a time go on."""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from powerinfer.errors import PowerInferError

if TYPE_CHECKING:
    from asyncio import Task

__all__ = [
    "ABANDONED",
    "CLOSED",
    "LOOK_EVERY_S",
    "REPLACED",
    "Caller",
    "Held",
    "PieceInProgress",
    "Turn",
    "tell",
    "wait_for",
]

# A thread or a task that ends tells nobody, nor does a place that Ctrl-C took out of a queue. So
# those who wait look now and then.
LOOK_EVERY_S = 0.05

# What those are told whose turn ended before its work was done.
REPLACED = (
    "this stream was ended because the thread or task that read it made another call to the same "
    "LLM; finish one stream before starting the next, read each in a thread of its own (in asyncio "
    "with astream), or use share()"
)
ABANDONED = "this stream was ended because the thread or task that read it has ended"
CLOSED = "the LLM was closed before this call finished"


class Caller:
    """Who asks: a thread or, in an asyncio program, a task of a thread's loop."""

    __slots__ = ("_is_at_program_end", "_task", "_thread")

    def __init__(self, task: "Task[object] | None" = None) -> None:
        thread = threading.current_thread()
        # The main thread counts as dead while it runs what programs do at their end (`atexit`).
        self._is_at_program_end = not thread.is_alive()
        # Weak: a thread or a task may hold the model that would hold it.
        self._thread = weakref.ref(thread)
        self._task = None if task is None else weakref.ref(task)

    @property
    def thread(self) -> threading.Thread | None:
        """Its thread; None after the thread's end."""
        return self._thread()

    @property
    def is_thread(self) -> bool:
        """It is no task, so that all tasks of its thread stand still while it waits."""
        return self._task is None

    @property
    def is_gone(self) -> bool:
        """It ended, and will ask for nothing more."""
        thread = self._thread()
        if thread is None or not (thread.is_alive() or self._is_at_program_end):
            return True
        if self._task is None:
            return False
        task = self._task()
        return task is None or task.done() or task.get_loop().is_closed()

    def cannot_wait_for(self, holder: "Caller") -> bool:
        """Whether waiting would never end, because `holder` cannot go on before we do."""
        if self._thread() is not holder._thread():
            return False
        return self._task is None or holder._task is None or self._task() is holder._task()


class PieceInProgress:
    """Exists while a piece is computed; its frame drops it, whatever ends the frame."""

    __slots__ = ("__weakref__", "thread_id")

    def __init__(self) -> None:
        self.thread_id = threading.get_ident()


@dataclass(eq=False, slots=True, weakref_slot=True)
class Turn:
    """One use of the sequence, from its first piece of work to the last.

    Attributes:
        work: computes a piece whenever it is asked for one; None once the turn is over.
        end_message: why it ended before its work was done, if something ended it.
        is_dropped: nobody can ask for more.
        at_end: called once when it is over, with the lock of all turns held.
        wake: tells whoever waits to look again; takes no lock, since destructors call it.
    """

    work: Iterator[str] | None
    at_end: Callable[[], object] | None = None
    caller: Caller | None = None
    end_message: str | None = None
    is_ending: bool = False
    is_dropped: bool = False
    wake: Callable[[], None] | None = None
    piece: "weakref.ref[PieceInProgress] | None" = None

    @property
    def is_over(self) -> bool:
        """Nothing more will be computed."""
        return self.work is None

    def check_not_ended(self) -> None:
        """Say what ended it before its work was done.

        Raises:
            PowerInferError: something did.
        """
        if self.is_over and self.end_message is not None:
            raise PowerInferError(self.end_message)

    @property
    def running(self) -> PieceInProgress | None:
        """The piece that is being computed now, if one is."""
        # Read once: it may be cleared meanwhile by whoever computes.
        piece = self.piece
        return None if piece is None else piece()

    @property
    def is_abandoned(self) -> bool:
        """Whoever asked is gone, and left it unfinished."""
        caller = self.caller
        return self.is_dropped or (caller is not None and caller.is_gone)


class Held:
    """Gives a turn back when it is dropped, whatever interrupted its user where.

    Attributes:
        turn: that it gives back.
    """

    __slots__ = ("_drop", "turn")

    def __init__(self, drop: Callable[[Turn], object], turn: Turn) -> None:
        self._drop, self.turn = drop, turn

    def __del__(self) -> None:
        self._drop(self.turn)


def tell(turn: Turn) -> None:
    """Make whoever waits for a turn look again."""
    wake = turn.wake
    if wake is not None:
        wake()


def wait_for(news: "SimpleQueue[None]") -> None:
    """Wait until something may have changed."""
    with suppress(Empty):
        news.get(timeout=LOOK_EVERY_S)
